//! Patterns and folders as lists of locations.

use super::location::{file_path, scheme, shown};
use super::pattern::{Pattern, has_wildcard};
use crate::DataError;
use std::fs;
use std::path::{Path, PathBuf};

/// What these locations name, each in turn: `*`, `?` and `[…]` in a path stand for what matches (`**` for any depth), a folder or
/// prefix that ends in `/` for every data file below it but hidden ones. What one of them matches is in order of its bytes.
pub fn expand(locations: &[String]) -> Result<Vec<String>, DataError> {
    let mut found = Vec::new();
    for location in locations {
        let matches = one(location)?;
        if matches.is_empty() {
            return Err(DataError::unreadable(&shown(location), "matches nothing"));
        }
        found.extend(matches);
    }
    if found.is_empty() {
        return Err(DataError::Usage("no input is named".to_owned()));
    }
    Ok(found)
}

fn one(location: &str) -> Result<Vec<String>, DataError> {
    match scheme(location) {
        None => local(location),
        Some(("file", _)) => local(&file_path(location)?),
        #[cfg(feature = "cloud")]
        Some(("http" | "https", _)) => Ok(vec![location.to_owned()]),
        #[cfg(feature = "cloud")]
        Some(_) if location.ends_with('/') || has_wildcard(location) => super::cloud::matching(location),
        Some(_) => Ok(vec![location.to_owned()]),
    }
}

fn local(path: &str) -> Result<Vec<String>, DataError> {
    // A name that exists means itself, whatever letters it has.
    if !path.ends_with('/') && (!has_wildcard(path) || Path::new(path).exists()) {
        return Ok(vec![path.to_owned()]);
    }
    let pattern = Pattern::new(path);
    let root = PathBuf::from(if pattern.prefix.is_empty() { "." } else { &pattern.prefix });
    let mut found = Vec::new();
    walk(&root, &pattern, &mut found)?;
    found.sort_unstable();
    Ok(found)
}

fn walk(folder: &Path, pattern: &Pattern, found: &mut Vec<String>) -> Result<(), DataError> {
    let shown = folder.display().to_string();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(DataError::io(&shown, error)),
    };
    for entry in entries {
        let path = entry.map_err(|error| DataError::io(&shown, error))?.path();
        let Some(text) = path.to_str() else { continue };
        let text = if pattern.prefix.is_empty() { text.strip_prefix("./").unwrap_or(text) } else { text };
        // A link to a folder above would never end.
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if is_folder {
            if pattern.may_hold(text) {
                walk(&path, pattern, found)?;
            }
        } else if path.is_file() && pattern.matches(text) {
            found.push(text.to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "b.csv",
            "a.csv",
            "a10.csv",
            ".hidden.csv",
            "_SUCCESS",
            "note.md",
            "deep/c.parquet",
            "deep/.git/d.csv",
            "x[1].csv",
        ] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let root = folder.path().to_str().unwrap().to_owned();
        (folder, root)
    }

    fn names(root: &str, pattern: &str) -> Vec<String> {
        let found = expand(&[format!("{root}/{pattern}")]).unwrap();
        found.into_iter().map(|path| path[root.len() + 1..].to_owned()).collect()
    }

    #[test]
    fn patterns_name_what_a_shell_would() {
        let (_folder, root) = tree();
        assert_eq!(names(&root, "*.csv"), ["a.csv", "a10.csv", "b.csv", "x[1].csv"]);
        assert_eq!(names(&root, "a?0.csv"), ["a10.csv"]);
        assert_eq!(names(&root, "[!b].csv"), ["a.csv"]);
        assert_eq!(names(&root, "[a-b].csv"), ["a.csv", "b.csv"]);
        assert_eq!(names(&root, "*/*.parquet"), ["deep/c.parquet"]);
        assert_eq!(names(&root, "**/*.parquet"), ["deep/c.parquet"]);
        assert_eq!(names(&root, "**/*.csv"), ["a.csv", "a10.csv", "b.csv", "x[1].csv"]);
        assert_eq!(names(&root, "x[1].csv"), ["x[1].csv"]);
    }

    #[test]
    fn a_folder_is_its_data_files() {
        let (_folder, root) = tree();
        assert_eq!(names(&root, ""), ["a.csv", "a10.csv", "b.csv", "deep/c.parquet", "x[1].csv"]);
    }

    #[test]
    fn what_matches_nothing_is_named() {
        let (_folder, root) = tree();
        let error = expand(&[format!("{root}/a.csv"), format!("{root}/*.npy")]).unwrap_err().to_string();
        assert!(error.ends_with("*.npy: matches nothing"), "{error}");
        assert!(expand(&[]).is_err());
    }

    #[test]
    fn the_order_is_that_of_the_locations_and_then_of_bytes() {
        let (_folder, root) = tree();
        let found = expand(&[format!("{root}/b.csv"), format!("{root}/a*.csv")]).unwrap();
        assert_eq!(found, [format!("{root}/b.csv"), format!("{root}/a.csv"), format!("{root}/a10.csv")]);
    }
}
