//! Builds the four libraries that the command carries, and lists the files of the Python package.

include!("../library.rs");

fn main() {
    for name in ["cuda", "guard", "ram", "record"] {
        build_library(name);
    }
    list_package();
}

/// Writes `package.rs`: an array of (path below `oomph`, text) of every Python file, so that adding a file needs no list.
///
/// Files are watched and their folders are not: Python writes `__pycache__` there whenever something runs. A new file comes with a
/// change of the file that imports it.
#[allow(clippy::print_stdout)] // how a build script speaks to Cargo
fn list_package() {
    let here = std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let package = here.join("../../python/oomph");
    let mut files = Vec::new();
    python_files(&package, &mut files);
    files.sort();
    let mut text = String::from("[\n");
    for path in &files {
        println!("cargo::rerun-if-changed={}", path.display());
        let below = path.strip_prefix(&package).unwrap_or(path);
        text.push_str(&format!(
            "    ({:?}, include_str!({:?})),\n",
            below.display().to_string(),
            path.display().to_string()
        ));
    }
    text.push_str("]\n");
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("package.rs");
    if let Err(error) = std::fs::write(&out, text) {
        println!("cargo::error={}: {error}", out.display());
    }
}

fn python_files(folder: &std::path::Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            python_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
}
