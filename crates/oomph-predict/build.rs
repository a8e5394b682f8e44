//! Builds `oomph-cuda`, which the command carries.

include!("../library.rs");

fn main() {
    build_library("cuda");
}
