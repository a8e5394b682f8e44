//! In the place of a server, where the protocol was left out of the build.

use crate::Toolbox;
use std::io;

/// Asks a server to end.
#[derive(Clone, Debug)]
pub struct Ender(());

impl Ender {
    /// There is none.
    pub fn end(&self) {}
}

/// Says that this build cannot.
pub fn serve(_: impl Toolbox, _: &str, hand_over: impl FnOnce(Ender) -> io::Result<()>) -> io::Result<()> {
    drop(hand_over);
    let why = "this oomph was built without the Model Context Protocol\n\nhint: the one that pip installs has it, and so has cargo build --release --features full";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}
