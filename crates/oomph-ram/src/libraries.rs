//! Whose code an address is: the libraries that are mapped into this process, as the kernel lists them.
//!
//! The list is read when an address comes up that is in none of those that are known. The dynamic loader is not asked: it holds a lock that a thread in the middle
//! of loading a library, and of asking for memory, would have us wait for.

use crate::spread::Map;
use std::ops::Range;

const LIST: &str = "/proc/self/maps";
/// Code that belongs to no file may be anywhere, and each new page of it would have the list read again.
const MOST_READS: u32 = 400;
const PAGE_BITS: u32 = 12;

/// Libraries by the addresses of their code.
#[derive(Default)]
pub struct Libraries {
    ranges: Vec<(Range<usize>, u32)>,
    paths: Vec<String>,
    /// Pages of code that is in no library.
    unknown: Map<u64, ()>,
    reads: u32,
}

impl Libraries {
    /// The number of the library, from 1 on; 0 for none.
    pub fn of(&mut self, address: usize) -> u32 {
        if let Some(number) = self.known(address) {
            return number;
        }
        let page = (address >> PAGE_BITS) as u64;
        if address == 0 || self.unknown.contains_key(&page) || self.reads >= MOST_READS {
            return 0;
        }
        self.reads += 1;
        if let Ok(list) = std::fs::read_to_string(LIST) {
            self.read(&list);
        }
        self.known(address).unwrap_or_else(|| {
            self.unknown.insert(page, ());
            0
        })
    }

    /// Its path.
    pub fn path(&self, number: u32) -> Option<&str> {
        self.paths.get((number as usize).checked_sub(1)?).map(String::as_str)
    }

    fn known(&self, address: usize) -> Option<u32> {
        let after = self.ranges.partition_point(|(range, _)| range.start <= address);
        let (range, number) = self.ranges.get(after.checked_sub(1)?)?;
        range.contains(&address).then_some(*number)
    }

    fn read(&mut self, list: &str) {
        self.ranges.clear();
        for line in list.lines() {
            let Some((range, path)) = code_of(line) else { continue };
            let number = match self.paths.iter().position(|known| known == path) {
                Some(place) => place + 1,
                None => {
                    self.paths.push(path.to_owned());
                    self.paths.len()
                }
            };
            self.ranges.push((range, number as u32));
        }
        self.ranges.sort_by_key(|(range, _)| range.start);
    }
}

/// `7f00-7f10 r-xp 00000000 08:01 1234   /usr/lib/libc.so.6`
fn code_of(line: &str) -> Option<(Range<usize>, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let is_code = rest.as_bytes().get(2) == Some(&b'x');
    let path = rest.get(rest.find('/')?..)?;
    is_code.then_some((number(start)?..number(end)?, path.strip_suffix(" (deleted)").unwrap_or(path)))
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
        let path = |address| libraries.known(address).and_then(|number| libraries.path(number));
        assert_eq!(path(0x2000), Some("/lib/a.so"));
        assert_eq!(path(0x3fff), Some("/lib/a.so"));
        assert_eq!(path(0x4000), None);
        assert_eq!(path(0x5800), Some("/lib/b c.so"));
        assert_eq!(path(0x7000), None);
        let mut own = Libraries::default();
        let number = own.of(code_is_found_by_its_address as *const () as usize);
        assert!(own.path(number).is_some_and(|path| path.contains("oomph_ram")));
        assert_eq!(own.of(8), 0);
    }
}
