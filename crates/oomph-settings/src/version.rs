//! PyTorch's versions, and what differs between them for whoever models the allocator.

use std::fmt;
use std::str::FromStr;

/// A version of PyTorch: major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2 of 2.13.
    pub major: u32,
    /// 13 of 2.13.
    pub minor: u32,
}

impl Version {
    /// The oldest that is modelled.
    pub const OLDEST: Self = Self::new(2, 0);
    /// The newest whose rules are known; later ones are taken to be like it.
    pub const NEWEST: Self = Self::new(2, 15);

    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Which of two equal free blocks is taken.
    pub fn tie_break(self) -> TieBreak {
        match (self.major, self.minor) {
            (..=1, _) | (2, ..=11) => TieBreak::Address,
            (2, 12) => TieBreak::BlockAge,
            _ => TieBreak::SegmentAge,
        }
    }

    /// Whether it is 2.`minor` or later.
    pub fn at_least(self, minor: u32) -> bool {
        self >= Self::new(2, minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a version of PyTorch; write 2.11 or 2.13.1+cu126");
        let mut parts = text.trim().split(['.', '+']);
        let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
        let (Some(major), Some(minor)) = (number(), number()) else { return Err(wrong()) };
        let version = Self { major, minor };
        if version < Self::OLDEST {
            return Err(format!("PyTorch {version} is too old: the model knows 2.0 and later"));
        }
        if major > 2 {
            return Err(wrong());
        }
        Ok(version)
    }
}

/// Which of the free blocks of one size is taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TieBreak {
    /// The lowest address: it hangs on what the driver returned.
    Address,
    /// The block that was made first.
    BlockAge,
    /// The block of the segment that was made first, then the lowest address.
    SegmentAge,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_torch_writes_them() {
        assert_eq!("2.11.0+cu130".parse(), Ok(Version::new(2, 11)));
        assert_eq!("2.4".parse(), Ok(Version::new(2, 4)));
        for text in ["", "2", "two", "1.13", "3.0", "2.x"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
        assert_eq!(Version::new(2, 11).tie_break(), TieBreak::Address);
        assert_eq!(Version::new(2, 12).tie_break(), TieBreak::BlockAge);
        assert_eq!(Version::new(2, 20).tie_break(), TieBreak::SegmentAge);
    }
}
