//! Whose code an address is: the libraries that are mapped into this process, as the kernel lists them.
//!
//! The list is read when an address comes up that is in none of those that are known. The dynamic loader is not asked: it holds a lock that a thread in the middle
//! of loading a library, and of asking for memory, would have us wait for.

use crate::spread::Map;
use std::ops::Range;
use std::time::{Duration, Instant};

const LIST: &str = "/proc/self/maps";
/// Code that belongs to no file may be anywhere, and each new page of it would have the list read again: after so many readings, it is done once in a while.
const MOST_READS: u32 = 400;
const A_WHILE: Duration = Duration::from_secs(1);
const PAGE_BITS: u32 = 12;

/// Code of a library.
struct Mapped {
    addresses: Range<usize>,
    /// Where in the file it begins.
    offset: usize,
    library: u32,
}

/// Libraries by the addresses of their code.
#[derive(Default)]
pub(crate) struct Libraries {
    ranges: Vec<Mapped>,
    paths: Vec<String>,
    /// Pages of code that is in no library.
    unknown: Map<u64, ()>,
    reads: u32,
    read_last: Option<Instant>,
}

impl Libraries {
    /// The number of the library, from 1 on; 0 for none.
    pub(crate) fn of(&mut self, address: usize) -> u32 {
        self.place(address).0
    }

    /// The same, and where in its file the address is.
    pub(crate) fn place(&mut self, address: usize) -> (u32, usize) {
        if let Some(place) = self.known(address) {
            return place;
        }
        let page = (address >> PAGE_BITS) as u64;
        if address == 0 || self.unknown.contains_key(&page) {
            return (0, 0);
        }
        let is_soon = self.read_last.is_some_and(|last| last.elapsed() < A_WHILE);
        if self.reads >= MOST_READS && is_soon {
            self.unknown.insert(page, ());
            return (0, 0);
        }
        self.reads = self.reads.saturating_add(1);
        self.read_last = Some(Instant::now());
        if let Ok(list) = std::fs::read_to_string(LIST) {
            self.read(&list);
        }
        self.known(address).unwrap_or_else(|| {
            self.unknown.insert(page, ());
            (0, 0)
        })
    }

    pub(crate) fn path(&self, number: u32) -> Option<&str> {
        self.paths.get((number as usize).checked_sub(1)?).map(String::as_str)
    }

    fn known(&self, address: usize) -> Option<(u32, usize)> {
        let after = self.ranges.partition_point(|mapped| mapped.addresses.start <= address);
        let mapped = self.ranges.get(after.checked_sub(1)?)?;
        let offset = mapped.offset.wrapping_add(address - mapped.addresses.start);
        mapped.addresses.contains(&address).then_some((mapped.library, offset))
    }

    fn read(&mut self, list: &str) {
        self.ranges.clear();
        for line in list.lines() {
            let Some((addresses, offset, path)) = code_of(line) else { continue };
            let number = match self.paths.iter().position(|known| known == path) {
                Some(place) => place + 1,
                None => {
                    self.paths.push(path.to_owned());
                    self.paths.len()
                }
            };
            self.ranges.push(Mapped { addresses, offset, library: number as u32 });
        }
        self.ranges.sort_by_key(|mapped| mapped.addresses.start);
    }
}

/// `7f00-7f10 r-xp 00001000 08:01 1234   /usr/lib/libc.so.6`
fn code_of(line: &str) -> Option<(Range<usize>, usize, &str)> {
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (access, after) = rest.split_once(' ')?;
    let (offset, _) = after.split_once(' ')?;
    let path = rest.get(rest.find('/')?..)?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    (access.as_bytes().get(2) == Some(&b'x')).then_some((number(start)?..number(end)?, number(offset)?, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_its_address() {
        let mut libraries = Libraries::default();
        libraries.read(
            "1000-2000 r--p 0 08:01 1 /lib/a.so\n2000-4000 r-xp 1000 08:01 1 /lib/a.so\n5000-6000 r-xp 0 08:01 2 /lib/b c.so (deleted)\n7000-8000 r-xp 0 00:00 0 [vdso]\n",
        );
        let path = |address| libraries.known(address).and_then(|(number, _)| libraries.path(number));
        assert_eq!(path(0x2000), Some("/lib/a.so"));
        assert_eq!(path(0x3fff), Some("/lib/a.so"));
        assert_eq!(path(0x4000), None);
        assert_eq!(path(0x5800), Some("/lib/b c.so"));
        assert_eq!(path(0x7000), None);
        assert_eq!(libraries.known(0x2010), Some((1, 0x1010)));
        let mut own = Libraries::default();
        let number = own.of(code_is_found_by_its_address as *const () as usize);
        assert!(own.path(number).is_some_and(|path| path.contains("oomph_ram")));
        assert_eq!(own.of(8), 0);
    }
}
