//! What a release carries: builds the four libraries, and lists them and the files of the Python package for `src/carried.rs`.
//!
//! A debug build carries nothing, and reads both where they are made: an edited Python file then needs no compiler.

#[path = "src/python_files.rs"]
mod python_files;

use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARIES: [&str; 4] = ["cuda", "guard", "ram", "record"];
/// What recorders share with their readers and with each other, by path.
const SHARED: [&str; 2] = ["oomph-trace/src/layout.rs", "oomph-words/src/library_code.rs"];

#[allow(clippy::print_stdout)] // how a build script speaks to Cargo
fn main() {
    println!("cargo::rustc-check-cfg=cfg(from_checkout)");
    let out = PathBuf::from(variable("OUT_DIR"));
    if variable("PROFILE") == "debug" {
        println!("cargo::rerun-if-changed=build.rs");
        println!("cargo::rustc-cfg=from_checkout");
        // Of target/debug/build/oomph-stage-…/out, where Cargo puts what it builds.
        let built = out.ancestors().nth(3).unwrap_or(&out);
        println!("cargo::rustc-env=OOMPH_BUILT={}", built.display());
        return;
    }
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    let package = crates.join("../python/oomph");
    let files = python_files::below(&package);
    let sources = LIBRARIES.map(|name| crates.join(format!("oomph-{name}/src")));
    let watched = sources.iter().cloned().chain(SHARED.map(|file| crates.join(file)));
    for path in watched.chain([package.clone(), PathBuf::from("build.rs")]) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let is = |key: &str, value: &str| variable(&format!("CARGO_CFG_TARGET_{key}")) == value;
    // Elsewhere there are none, and the verbs that need them say so.
    let libraries = match is("OS", "linux") && is("ARCH", "x86_64") && is("ENV", "gnu") {
        true => &LIBRARIES[..],
        false => &[],
    };
    std::thread::scope(|scope| {
        for name in libraries {
            let (source, out) = (crates.join(format!("oomph-{name}/src/lib.rs")), &out);
            scope.spawn(move || build(name, &source, out));
        }
    });
    let mut list = String::from("static LIBRARIES: &[(&str, &[u8])] = &[\n");
    for name in libraries.iter().map(|name| file_of(name)) {
        list.push_str(&format!("    ({name:?}, include_bytes!({:?})),\n", out.join(&name)));
    }
    list.push_str("];\nstatic PACKAGE: &[(&str, &str)] = &[\n");
    for file in &files {
        list.push_str(&format!("    ({file:?}, include_str!({:?})),\n", package.join(file)));
    }
    list.push_str("];\n");
    if let Err(error) = std::fs::write(out.join("carried.rs"), list) {
        println!("cargo::error=listing what is carried: {error}");
    }
}

/// Builds a library with the compiler alone: it must not depend on where oomph is installed, nor on a second file that could be of
/// another version. It is optimised in any case, for it runs inside other people's programs.
#[allow(clippy::print_stdout)] // how a build script speaks to Cargo
fn build(name: &str, source: &Path, out: &Path) {
    let file = file_of(name);
    let level = variable("OPT_LEVEL").replace('0', "1");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", &format!("oomph_{name}")])
        .args(["--cap-lints", "allow", "--target", &variable("TARGET")])
        .args(["-C", &format!("opt-level={level}"), "-C", "codegen-units=1"])
        .args(["-C", "panic=abort", "-C", "strip=symbols"])
        .args(["-C", &format!("link-arg=-Wl,-soname,{file}")])
        .arg("-o")
        .arg(out.join(&file))
        .arg(source);
    // The cross linker that `cargo`, or maturin with zig, is configured with.
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        let mut argument = std::ffi::OsString::from("linker=");
        argument.push(linker);
        rustc.arg("-C").arg(argument);
    }
    // Cargo shows what is said with cargo::error and fails the build.
    match rustc.status() {
        Ok(status) if status.success() => {}
        Ok(status) => println!("cargo::error=building oomph-{name}: {status}"),
        Err(error) => println!("cargo::error=building oomph-{name}: {error}"),
    }
}

fn file_of(name: &str) -> String {
    format!("liboomph_{name}.so")
}

/// One that Cargo sets.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
