//! Lifetimes as text: `id,lower,upper,size`, the form in which packing problems are passed around.
//!
//! `upper` is the first instant at which a buffer is gone. Columns are found by their names, in any order. Columns that
//! would change what a good placement is (an inclusive `end`, `alignment`, `gaps`, `hint`) are refused; others are passed over.

use crate::packing::Buffer;

/// Buffers with their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// As the file names them.
    pub names: Vec<String>,
    /// Their lives and sizes.
    pub buffers: Vec<Buffer>,
}

/// What is wrong with a file of lifetimes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LifetimesError {
    /// The first line does not name the columns.
    #[error("the first line must name the columns id, lower, upper and size; there is no {0}")]
    NoColumn(&'static str),
    /// A column says something that is not understood.
    #[error(
        "there is a column {0:?}, which a placement would have to honour and does not; leave it out, or write lower, upper (exclusive) and size"
    )]
    Unsupported(String),
    /// A buffer ends before it begins.
    #[error("line {0}: upper is not above lower")]
    NeverAlive(usize),
    /// There is nothing to place.
    #[error("there are no buffers in it")]
    Empty,
    /// More than 64 bits hold.
    #[error("the sizes add up to more than 64 bits hold")]
    TooLarge,
    /// A line is not three numbers.
    #[error("line {line}: {value:?} is not a whole number")]
    NotANumber {
        /// Which.
        line: usize,
        /// What stands there.
        value: String,
    },
}

impl Lifetimes {
    /// Reads them.
    pub fn parse(text: &str) -> Result<Self, LifetimesError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let heading: Vec<String> = (lines.next().map_or("", |(_, line)| line).split(','))
            .map(|name| name.trim().trim_start_matches('\u{feff}').to_ascii_lowercase())
            .collect();
        let column = |names: &[&str], missing: &'static str| {
            let found = heading.iter().position(|name| names.contains(&name.as_str()));
            found.ok_or(LifetimesError::NoColumn(missing))
        };
        const UNSUPPORTED: [&str; 4] = ["end", "alignment", "gaps", "hint"];
        if let Some(name) = heading.iter().find(|name| UNSUPPORTED.contains(&name.as_str())) {
            return Err(LifetimesError::Unsupported(name.clone()));
        }
        let lower = column(&["lower", "start", "begin"], "lower")?;
        let upper = column(&["upper"], "upper")?;
        let size = column(&["size"], "size")?;
        let id = column(&["id", "buffer", "name"], "id").ok();
        let mut lifetimes = Self::default();
        for (index, line) in lines {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            let number = |column: usize| -> Result<u64, LifetimesError> {
                let cell = cells.get(column).copied().unwrap_or_default();
                cell.parse().map_err(|_| LifetimesError::NotANumber {
                    line: index + 1,
                    value: cell.chars().take(40).collect(),
                })
            };
            let (lower, upper, size) = (number(lower)?, number(upper)?, number(size)?);
            if lower >= upper {
                return Err(LifetimesError::NeverAlive(index + 1));
            }
            let name =
                id.and_then(|id| cells.get(id)).map_or_else(|| index.to_string(), |cell| (*cell).to_owned());
            lifetimes.names.push(name);
            lifetimes.buffers.push(Buffer { lower, upper, size });
        }
        if lifetimes.buffers.is_empty() {
            return Err(LifetimesError::Empty);
        }
        let total: u128 = lifetimes.buffers.iter().map(|buffer| u128::from(buffer.size)).sum();
        if total > u128::from(u64::MAX) { Err(LifetimesError::TooLarge) } else { Ok(lifetimes) }
    }

    /// Writes them with a place for each.
    pub fn with_offsets(&self, offsets: &[u64]) -> String {
        let mut text = "id,lower,upper,size,offset\n".to_owned();
        for ((name, buffer), offset) in self.names.iter().zip(&self.buffers).zip(offsets) {
            text += &format!("{name},{},{},{},{offset}\n", buffer.lower, buffer.upper, buffer.size);
        }
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let read = Lifetimes::parse("size, id,lower,upper\n10,a,0,5\n\n20,b,5,9\n").unwrap();
        assert_eq!(read.names, ["a", "b"]);
        assert_eq!(read.buffers[1], Buffer { lower: 5, upper: 9, size: 20 });
        assert_eq!(read.with_offsets(&[0, 10]), "id,lower,upper,size,offset\na,0,5,10,0\nb,5,9,20,10\n");
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(Lifetimes::parse(""), Err(LifetimesError::NoColumn("lower")));
        let error = Lifetimes::parse("id,lower,upper,size\n1,0,x,3\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: \"x\" is not a whole number");
        assert!(Lifetimes::parse("id,lower,upper,size\n1,0\n").is_err());
        // In some tables `end` is the last instant of a life: read as the first after it, the placement would overlap.
        assert!(matches!(
            Lifetimes::parse("id,lower,end,size\na,0,1,10\n"),
            Err(LifetimesError::Unsupported(_))
        ));
        assert_eq!(Lifetimes::parse("id,lower,upper,size\na,3,3,1\n"), Err(LifetimesError::NeverAlive(2)));
        assert_eq!(Lifetimes::parse("id,lower,upper,size\n"), Err(LifetimesError::Empty));
        let huge = format!("id,lower,upper,size\na,0,1,{0}\nb,0,1,{0}\n", u64::MAX);
        assert_eq!(Lifetimes::parse(&huge), Err(LifetimesError::TooLarge));
    }
}
