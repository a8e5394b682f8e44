//! Builds `oomph-cuda` with the compiler alone, so that the command carries the library it preloads.
//!
//! The library must not depend on where oomph is installed, nor on a second file that could be of another version.

use std::path::PathBuf;
use std::process::Command;

#[allow(clippy::print_stdout)] // how a build script speaks to Cargo
fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let source = here.join("../oomph-cuda/src");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("liboomph_cuda.so");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux")
        || std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64")
    {
        // Elsewhere there is no virtual GPU; `predict` says so.
        let _ = std::fs::write(&out, []);
        return;
    }
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "--crate-name",
            "oomph_cuda",
            "--cap-lints",
            "allow",
        ])
        .args(["-C", "opt-level=2", "-C", "panic=abort", "-C", "strip=symbols", "-C", "codegen-units=1"])
        .args(["-C", "link-arg=-Wl,-soname,liboomph_cuda.so"])
        .arg("--target")
        .arg(std::env::var_os("TARGET").unwrap_or_default())
        .arg("-o")
        .arg(&out)
        .arg(source.join("lib.rs"));
    // A cross linker, as `cargo` or maturin with zig was told to use.
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        let mut argument = std::ffi::OsString::from("linker=");
        argument.push(linker);
        rustc.arg("-C").arg(argument);
    }
    // Cargo shows what is said with cargo::error and fails the build.
    match rustc.status() {
        Ok(status) if status.success() => {}
        Ok(status) => println!("cargo::error=building oomph-cuda: {status}"),
        Err(error) => println!("cargo::error=building oomph-cuda: {error}"),
    }
}
