//! Writes a library that has a name and needs others, and nothing else: `shim FILE SONAME NEEDED...`, for working on
//! `oomph-guard`.

use oomph_predict::stubs::StubLibrary;
use std::collections::BTreeSet;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, soname, needs @ ..] = arguments.as_slice() else {
        return Err("shim FILE SONAME NEEDED...".into());
    };
    let needs: Vec<&str> = needs.iter().map(String::as_str).collect();
    let library = StubLibrary { soname, needs: &needs, version: None, functions: &BTreeSet::new() };
    Ok(std::fs::write(file, library.build())?)
}
