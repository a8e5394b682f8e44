//! Cells of notebooks under the numbers that people know: `In[6]`, not `/tmp/ipykernel_311/1415926535.py`.
//!
//! Old versions of IPython have the number in the file's name; newer ones do not, so oomph's recorder marks it.

use hashbrown::HashMap;
use oomph_trace::Recording;
use oomph_trace::census::Census;

/// How a recorder marks a cell: this, its number, a space, the file's name.
const MARK: &str = "oomph.cell ";

/// The cells that a recording's files are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells(HashMap<String, u64>);

impl Cells {
    /// Reads the marks.
    pub(crate) fn of(recording: &Recording) -> Self {
        let marks = recording.annotations.iter().filter_map(|mark| {
            let (number, file) = recording.strings.get(mark.name).strip_prefix(MARK)?.split_once(' ')?;
            Some((file.to_owned(), number.parse().ok()?))
        });
        Self(marks.collect())
    }

    /// Who held what, with cells by their numbers.
    pub(crate) fn censuses(&self, recording: &Recording) -> Vec<Census> {
        let mut censuses = recording.censuses.clone();
        for census in &mut censuses {
            let files = (census.frames.iter_mut().map(|frame| &mut frame.file))
                .chain(census.holders.iter_mut().map(|holder| &mut holder.file))
                .chain(census.modules.iter_mut().map(|module| &mut module.file));
            for file in files {
                *file = self.name(file);
            }
        }
        censuses
    }

    /// A file's name for people: a cell by its number, any other file as it is.
    pub(crate) fn name(&self, file: &str) -> String {
        let in_its_name = || file.strip_prefix("<ipython-input-")?.split('-').next()?.parse().ok();
        match self.0.get(file).copied().or_else(in_its_name) {
            Some(number) => format!("In[{number}]"),
            None => file.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oomph_trace::{Annotation, Stage};

    #[test]
    fn cells_are_named_by_their_number() {
        let mut recording = Recording::default();
        let name = recording.strings.intern("oomph.cell 6 /tmp/ipykernel_311/14159.py");
        recording.annotations.push(Annotation { device: 0, time: 1, name, stage: Stage::Mark });
        let cells = Cells::of(&recording);
        assert_eq!(cells.name("/tmp/ipykernel_311/14159.py"), "In[6]");
        assert_eq!(cells.name("<ipython-input-12-0123456789ab>"), "In[12]");
        assert_eq!(cells.name("<ipython-input-x>"), "<ipython-input-x>");
        assert_eq!(cells.name("train.py"), "train.py");
    }
}
