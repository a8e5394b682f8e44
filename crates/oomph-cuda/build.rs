//! Names the library as other libraries ask for it.

#[allow(clippy::print_stdout)] // how a build script speaks to Cargo
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboomph_cuda.so");
    }
}
