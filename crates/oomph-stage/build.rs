//! Builds the four libraries that the command carries, and packs them and the files of the Python package.
//!
//! Each of the two lists becomes one frame of zstd, so that what the libraries have in common is carried once, and a table of names
//! and lengths: `src/carried.rs` includes both.

use std::path::{Path, PathBuf};

include!("../library.rs");

const LIBRARIES: [&str; 4] = ["cuda", "guard", "ram", "record"];
/// The slowest level that needs no more memory to unpack than what is unpacked.
const LEVEL: i32 = 19;

#[allow(clippy::print_stdout)] // how a build script speaks to Cargo
fn main() {
    let built = LIBRARIES.map(|name| {
        build_library(name);
        let file = format!("liboomph_{name}.so");
        (file.clone(), out().join(file))
    });
    for (name, files) in [("libraries", built.to_vec()), ("package", package())] {
        if let Err(error) = pack(name, &files) {
            println!("cargo::error=packing {name}: {error}");
        }
    }
}

/// Writes `NAME.zst`, the contents of all files after each other, and `NAME.rs`, an array of (name, length).
fn pack(name: &str, files: &[(String, PathBuf)]) -> std::io::Result<()> {
    let mut contents = Vec::new();
    let mut table = String::from("[\n");
    for (name, path) in files {
        let content = std::fs::read(path)?;
        table.push_str(&format!("    ({name:?}, {}),\n", content.len()));
        contents.extend(content);
    }
    table.push_str("]\n");
    std::fs::write(out().join(format!("{name}.zst")), zstd::bulk::compress(&contents, LEVEL)?)?;
    std::fs::write(out().join(format!("{name}.rs")), table)
}

/// Every Python file by its path below `oomph`, so that adding a file needs no list.
///
/// Files are watched and their folders are not: Python writes `__pycache__` there whenever something runs. A new file comes with a
/// change of the file that imports it.
#[allow(clippy::print_stdout)] // how a build script speaks to Cargo
fn package() -> Vec<(String, PathBuf)> {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let package = here.join("../../python/oomph");
    let mut files = Vec::new();
    python_files(&package, &mut files);
    files.sort();
    let below = |path: &Path| path.strip_prefix(&package).unwrap_or(path).display().to_string();
    for path in &files {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    files.iter().map(|path| (below(path), path.clone())).collect()
}

fn python_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            python_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
}

fn out() -> PathBuf {
    PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default())
}
