//! Which files the Python package has, so that adding one needs no list. The build script compiles this file too.

use std::path::Path;

/// Every Python file below a folder, by its path there, in order.
pub(crate) fn below(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    collect(folder, "", &mut files);
    files.sort();
    files
}

fn collect(folder: &Path, path: &str, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = format!("{path}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{name}/"), files);
        } else if name.ends_with(".py") {
            files.push(name);
        }
    }
}
