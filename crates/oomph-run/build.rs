//! Builds `oomph-record` and `oomph-guard`, which the command carries.

include!("../library.rs");

fn main() {
    build_library("record");
    build_library("guard");
}
