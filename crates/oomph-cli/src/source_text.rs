//! The text of a line of source, where it is at hand and may be shown.
//!
//! A recording is a stranger's: it may name any file of this machine, and the page may be sent on. So only Python files
//! below the folders that were named (by default the current one) are read.

use anyhow::Context;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

/// No source file that people write is larger.
const LARGEST: u64 = 4 << 20;

/// Reads lines, each file once.
pub(crate) struct SourceText {
    roots: Vec<PathBuf>,
    /// Whether files that were recorded elsewhere are looked for under the roots, by the end of their path.
    elsewhere: bool,
    files: RefCell<HashMap<String, Option<SourceFile>>>,
    changed: RefCell<HashSet<String>>,
}

struct SourceFile {
    lines: Vec<String>,
    modified: Option<SystemTime>,
}

impl SourceText {
    /// From these folders; without any, the current one, and only files that lie where they were recorded.
    pub(crate) fn below(folders: &[PathBuf]) -> anyhow::Result<Self> {
        let elsewhere = !folders.is_empty();
        let roots = match elsewhere {
            true => folders
                .iter()
                .map(|folder| folder.canonicalize().with_context(|| format!("--source {}", folder.display())))
                .collect::<anyhow::Result<_>>()?,
            // A folder that was deleted meanwhile has no files.
            false => Path::new(".").canonicalize().into_iter().collect(),
        };
        Ok(Self { roots, elsewhere, files: RefCell::default(), changed: RefCell::default() })
    }

    pub(crate) fn none() -> Self {
        Self { roots: Vec::new(), elsewhere: false, files: RefCell::default(), changed: RefCell::default() }
    }

    /// The line's text. A file that is newer than the recording (microseconds since 1970; 0 if not known) says nothing about it.
    pub(crate) fn line(&self, file: &str, line: u32, recorded: i64) -> Option<String> {
        if self.roots.is_empty() {
            return None;
        }
        let mut files = self.files.borrow_mut();
        let found = files.entry(file.to_owned()).or_insert_with(|| self.read(file)).as_ref()?;
        let micros = u64::try_from(recorded).ok()?;
        let end = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros))?;
        if recorded > 0 && found.modified.is_some_and(|modified| modified > end) {
            self.changed.borrow_mut().insert(file.to_owned());
            return None;
        }
        found.lines.get((line as usize).checked_sub(1)?).cloned()
    }

    /// How many files were passed over because they have changed since.
    pub(crate) fn changed(&self) -> usize {
        self.changed.borrow().len()
    }

    fn read(&self, file: &str) -> Option<SourceFile> {
        let path = self.find(file)?;
        let metadata = fs::metadata(&path).ok().filter(|found| found.is_file() && found.len() <= LARGEST)?;
        let lines = fs::read_to_string(path).ok()?.lines().map(str::to_owned).collect();
        Some(SourceFile { lines, modified: metadata.modified().ok() })
    }

    fn find(&self, file: &str) -> Option<PathBuf> {
        // Recorded on Windows, looked for here.
        let unified = file.replace('\\', "/");
        let file = Path::new(&unified);
        if file.extension().is_none_or(|ending| ending != "py") {
            return None;
        }
        // Canonical, so that neither `..` nor a link leads out of the folder.
        let inside = |path: PathBuf| {
            let path = path.canonicalize().ok()?;
            let is_python = path.extension().is_some_and(|ending| ending == "py");
            (is_python && self.roots.iter().any(|root| path.starts_with(root))).then_some(path)
        };
        if let Some(found) = self.roots.iter().find_map(|root| inside(root.join(file))) {
            return Some(found);
        }
        let parts: Vec<Component> =
            file.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        (0..parts.len()).filter(|_| self.elsewhere).find_map(|from| {
            let end: PathBuf = parts[from..].iter().collect();
            self.roots.iter().find_map(|root| inside(root.join(&end)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_python_below_the_folder_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("project");
        fs::create_dir_all(inner.join("models")).unwrap();
        fs::write(inner.join("models/gpt.py"), "one\ntwo\n").unwrap();
        fs::write(inner.join("notes.txt"), "secret\n").unwrap();
        fs::write(folder.path().join("outside.py"), "secret\n").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path().join("outside.py"), inner.join("link.py")).unwrap();
        let source = SourceText::below(std::slice::from_ref(&inner)).unwrap();
        let line = |file: &str| source.line(file, 2, 0);
        let whole = inner.join("models/gpt.py").display().to_string();
        assert_eq!(line(&whole).as_deref(), Some("two"));
        assert_eq!(line("models/gpt.py").as_deref(), Some("two"));
        assert_eq!(line("/content/elsewhere/models/gpt.py").as_deref(), Some("two"));
        assert_eq!(line("C:\\Users\\me\\models\\gpt.py").as_deref(), Some("two"));
        for file in ["notes.txt", "link.py", "../outside.py", "/etc/passwd", "models/missing.py"] {
            assert_eq!(source.line(file, 1, 0), None, "{file}");
        }
        assert_eq!(source.line("models/gpt.py", 0, 0), None);
        assert_eq!(source.line("models/gpt.py", 3, 0), None);
        assert_eq!(SourceText::none().line(&whole, 2, 0), None);
    }

    #[test]
    fn a_file_that_changed_after_the_recording_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train.py"), "one\n").unwrap();
        let source = SourceText::below(&[folder.path().to_owned()]).unwrap();
        let later = 4_102_444_800_000_000; // the year 2100
        assert_eq!(source.line("train.py", 1, 1_000_000), None);
        // Of two recordings that are compared, each has its own time.
        assert_eq!(source.line("train.py", 1, later).as_deref(), Some("one"));
        assert_eq!(source.line("train.py", 1, 1_000_000), None);
        assert_eq!(source.changed(), 1);
        assert!(SourceText::below(&[folder.path().join("missing")]).is_err());
    }
}
