//! What the kernel counted of a process: its own memory at the most, though the kernel is asked from time to time only.
//!
//! It keeps the most pages that were ever there itself. Where that rose beyond what was there at two readings in a row, the highest was between them. What of it was no memory of the process's own
//! was there at one of them, as a rule: the recorder also reads before pages of files are unmapped. They can go by other ways, so the mark bounds what was not read, and no more.

use oomph_trace::Resident;

/// Counts of pages are kept by processor, and put together a little later.
const IMPRECISE: u64 = 2 << 20;

/// What the kernel counts as the process's own: in RAM, and swapped.
pub(super) fn own(resident: &Resident) -> u64 {
    resident.anonymous.saturating_add(resident.swapped)
}

/// How much that may have been between two readings: the mark, less what was not the process's own at either. None where the readings have as much.
pub(super) fn own_by_mark(readings: &[Resident]) -> Option<u64> {
    let read = readings.iter().map(own).max()?;
    let by_mark = readings.windows(2).filter_map(|pair| match pair {
        [before, after] if after.most > before.most => {
            let elses = |one: &Resident| one.of_files.saturating_add(one.shared);
            let pages = after.most.saturating_sub(elses(before).max(elses(after)));
            Some(pages.saturating_add(before.swapped.min(after.swapped)))
        }
        _ => None,
    });
    by_mark.max().filter(|bytes| *bytes > read.saturating_add(IMPRECISE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(anonymous: u64, of_files: u64, most: u64) -> Resident {
        const MIB: u64 = 1 << 20;
        Resident {
            anonymous: anonymous * MIB,
            of_files: of_files * MIB,
            most: most * MIB,
            ..Resident::default()
        }
    }

    #[test]
    fn the_high_water_mark_bounds_what_was_between_two_readings() {
        let by_mark = |readings: &[Resident]| own_by_mark(readings).map(|bytes| bytes >> 20);
        assert_eq!(by_mark(&[]), None);
        // What the mark was before the first reading is nobody's.
        assert_eq!(by_mark(&[reading(100, 20, 900)]), None);
        assert_eq!(by_mark(&[reading(100, 20, 120), reading(150, 30, 180)]), None);
        // 300 pages were there at once; 30 of them, at the most, were files'.
        assert_eq!(by_mark(&[reading(100, 20, 120), reading(150, 30, 300)]), Some(270));
        // A file was read and unmapped: the reading before it went has its pages.
        assert_eq!(by_mark(&[reading(100, 20, 120), reading(100, 200, 300), reading(100, 20, 300)]), None);
        let all = Resident { anonymous: u64::MAX, of_files: u64::MAX, most: u64::MAX, ..Resident::default() };
        assert_eq!(own_by_mark(&[reading(0, 0, 0), all]), None);
    }
}
