//! Lifetimes as text: `id,lower,upper,size`, the form in which packing problems are passed around.
//!
//! `upper` is the first instant at which a buffer is gone. Columns are found by their names (`start`, `begin` and `end` are
//! known too), in any order; others are passed over.

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
        let lower = column(&["lower", "start", "begin"], "lower")?;
        let upper = column(&["upper", "end"], "upper")?;
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
            let name =
                id.and_then(|id| cells.get(id)).map_or_else(|| index.to_string(), |cell| (*cell).to_owned());
            lifetimes.names.push(name);
            lifetimes.buffers.push(Buffer { lower, upper, size });
        }
        Ok(lifetimes)
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
    }
}
