//! What the kernel counted of a process: its own memory at the most, though the kernel is asked from time to time only.
//!
//! It keeps the most pages that were ever there itself. Where that rose beyond what was there at two readings in a row, the highest was between them, and what was no memory of the process's own
//! then was there at one of them: the recorder also reads before pages of files go.

use oomph_trace::Resident;

/// What the kernel counts as the process's own: in RAM, and swapped.
pub fn own(resident: &Resident) -> u64 {
    resident.anonymous.saturating_add(resident.swapped)
}

/// The most of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// Bytes.
    pub bytes: u64,
    /// Whether that is from the kernel's high-water mark of all pages: no reading has as much.
    pub is_from_mark: bool,
}

/// Of readings in their order.
pub fn most_own(readings: &[Resident]) -> Option<Most> {
    let read = readings.iter().map(own).max()?;
    let from_mark = readings.windows(2).filter_map(|pair| match pair {
        [before, after] if after.most > before.most => {
            let elses = |one: &Resident| one.of_files.saturating_add(one.shared);
            let pages = after.most.saturating_sub(elses(before).max(elses(after)));
            Some(pages.saturating_add(before.swapped.min(after.swapped)))
        }
        _ => None,
    });
    let from_mark = from_mark.max().unwrap_or(0);
    Some(Most { bytes: read.max(from_mark), is_from_mark: from_mark > read })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(anonymous: u64, of_files: u64, most: u64) -> Resident {
        Resident { anonymous, of_files, most, ..Resident::default() }
    }

    #[test]
    fn the_high_water_mark_says_what_was_between_two_readings() {
        let most = |readings: &[Resident]| most_own(readings).map(|most| (most.bytes, most.is_from_mark));
        assert_eq!(most(&[]), None);
        // What the mark was before the first reading is nobody's.
        assert_eq!(most(&[reading(100, 20, 900)]), Some((100, false)));
        assert_eq!(most(&[reading(100, 20, 120), reading(150, 30, 180)]), Some((150, false)));
        // 300 pages were there at once; 30 of them, at the most, were files'.
        assert_eq!(most(&[reading(100, 20, 120), reading(150, 30, 300)]), Some((270, true)));
        // A file was read and unmapped: the reading before it went has its pages.
        let file = [reading(100, 20, 120), reading(100, 200, 300), reading(100, 20, 300)];
        assert_eq!(most(&file), Some((100, false)));
        let hostile = [reading(0, u64::MAX, 0), reading(u64::MAX, u64::MAX, u64::MAX)];
        assert_eq!(most(&hostile), Some((u64::MAX, false)));
    }
}
