// Included by build scripts: builds a library that the command carries, with the compiler alone.
//
// The library must not depend on where oomph is installed, nor on a second file that could be of another version. It is
// optimised whatever the profile: it runs inside other people's programs.

/// Builds the crate `oomph-NAME` as `liboomph_NAME.so` into `OUT_DIR`. Not for Linux on x86-64 with glibc: an empty file.
#[allow(clippy::print_stdout)] // how a build script speaks to Cargo
fn build_library(name: &str) {
    use std::path::PathBuf;
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let source = here.join(format!("../oomph-{name}/src"));
    println!("cargo::rerun-if-changed={}", source.display());
    // What recorders share with their readers and with each other, by path.
    for shared in ["oomph-trace/src/layout.rs", "oomph-words/src/library_code.rs", "oomph-record/src"] {
        println!("cargo::rerun-if-changed={}", here.join("..").join(shared).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../library.rs");
    let file = format!("liboomph_{name}.so");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join(&file);
    let is = |key: &str, value: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).as_deref() == Ok(value);
    if !(is("OS", "linux") && is("ARCH", "x86_64") && is("ENV", "gnu")) {
        // The verbs that need it say so.
        let _ = std::fs::write(&out, []);
        return;
    }
    let mut rustc = std::process::Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", &format!("oomph_{name}")])
        .args(["--cap-lints", "allow"])
        .args(["-C", "opt-level=3", "-C", "panic=abort", "-C", "strip=symbols", "-C", "codegen-units=1"])
        .args(["-C", &format!("link-arg=-Wl,-soname,{file}")])
        .arg("--target")
        .arg(std::env::var_os("TARGET").unwrap_or_default())
        .arg("-o")
        .arg(&out)
        .arg(source.join("lib.rs"));
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
