//! The folders that a server may read, and what lies in them.
//!
//! Boundary: says whether a path may be used, wherever its links lead; opens nothing.

use anyhow::{Context, bail};
use oomph_words::printable;
use std::path::{Component, Path, PathBuf};

/// Folders, by where they really are.
#[derive(Debug)]
pub(crate) struct Roots(Vec<PathBuf>);

impl Roots {
    /// These, or the current one.
    pub(crate) fn of(folders: &[PathBuf]) -> anyhow::Result<Self> {
        if folders.is_empty() {
            let here = std::env::current_dir()?.canonicalize()?;
            if here.parent().is_none() {
                // Clients that are no terminals start their servers here.
                bail!(
                    "the current folder is {}, which has every file of this machine\n\nhint: name the folder that may be read: oomph mcp --root /path/to/my/project",
                    here.display()
                );
            }
            return Ok(Self(vec![here]));
        }
        let real = |folder: &PathBuf| {
            let real = folder.canonicalize().with_context(|| format!("--root {}", folder.display()))?;
            if !real.is_dir() {
                bail!("--root {}: this is no folder", folder.display());
            }
            Ok(real)
        };
        folders.iter().map(real).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Goes into the first: relative paths begin there.
    pub(crate) fn enter(&self) -> anyhow::Result<()> {
        let first = &self.0[0];
        std::env::set_current_dir(first).with_context(|| format!("--root {}", first.display()))
    }

    /// As they are told to whoever asks.
    pub(crate) fn shown(&self) -> String {
        self.0.iter().map(|root| root.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Whether a path may be read or written. One where nothing is yet may be, if its folder is one of these.
    pub(crate) fn check(&self, path: &Path) -> Result<(), String> {
        let name = printable(&path.display().to_string());
        if path.as_os_str().is_empty() {
            return Err("the path is empty: name a file".to_owned());
        }
        if path == Path::new("-") {
            return Err("-: the server's own input is not read; name a file".to_owned());
        }
        let whole = self.0[0].join(path);
        let real = match whole.canonicalize() {
            Ok(real) => real,
            Err(_) if whole.is_symlink() => return Err(format!("{name}: this link leads nowhere")),
            Err(_) => {
                // Past what is not there, `..` leads nowhere: the folder itself must be there then.
                let goes_up = path.components().any(|part| part == Component::ParentDir);
                let folders = whole.ancestors().skip(1).take(if goes_up { 1 } else { usize::MAX });
                folders.into_iter().find_map(|folder| folder.canonicalize().ok()).unwrap_or_default()
            }
        };
        if !self.0.iter().any(|root| real.starts_with(root)) {
            return Err(format!(
                "{name}: this lies outside of {}\n\nhint: to let oomph read it, start the server with --root FOLDER",
                self.shown()
            ));
        }
        // A pipe would be waited for, and a device has no end.
        if whole.exists() && !whole.is_file() && !whole.is_dir() {
            return Err(format!("{name}: this is no file"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_what_really_lies_below_a_folder_may_be_used() {
        let place = tempfile::tempdir().unwrap();
        let (project, runs) = (place.path().join("project"), place.path().join("runs"));
        fs::create_dir_all(project.join("inner")).unwrap();
        fs::create_dir(&runs).unwrap();
        fs::create_dir(place.path().join("project-too")).unwrap();
        for file in ["project/a.oomph", "project/inner/b.oomph", "runs/c.oomph", "secret"] {
            fs::write(place.path().join(file), "").unwrap();
        }
        symlink("../secret", project.join("link")).unwrap();
        symlink("../missing", project.join("dangling")).unwrap();
        symlink("..", project.join("up")).unwrap();
        symlink("/dev/zero", project.join("device")).unwrap();
        symlink("inner/b.oomph", project.join("inside")).unwrap();
        let roots = Roots::of(&[project.clone(), runs.clone()]).unwrap();
        let may = |path: &str| roots.check(Path::new(path)).is_ok();
        for path in [
            "a.oomph",
            "inner/../a.oomph",
            "inner/../new.oomph",
            "inner",
            "inside",
            "new.oomph",
            "none/new.oomph",
            "../runs/c.oomph",
        ] {
            assert!(may(path), "{path}");
        }
        assert!(may(runs.join("c.oomph").to_str().unwrap()));
        for path in [
            "",
            "-",
            "link",
            "dangling",
            "up/secret",
            "../secret",
            "../missing",
            "/etc/passwd",
            "/",
            "..",
            "device",
            "../project-too",
            "../project-too/x",
            "/no/such/folder",
            "a\0b/../../../secret",
        ] {
            assert!(!may(path), "{path}");
        }
        let why = roots.check(Path::new("../secret")).unwrap_err();
        assert!(why.starts_with("../secret: this lies outside of "), "{why}");
        assert!(Roots::of(&[project.join("a.oomph")]).is_err());
        assert!(Roots::of(&[project.join("missing")]).is_err());
    }
}
