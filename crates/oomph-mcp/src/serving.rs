//! A server, from its start to its end.

use crate::{Toolbox, server};
use std::io;
use std::sync::mpsc;

/// Asks a server to end. May be used from any thread.
#[derive(Clone, Debug)]
pub struct Ender(tokio::sync::mpsc::UnboundedSender<()>);

impl Ender {
    /// What is under way is cancelled first.
    pub fn end(&self) {
        let _ = self.0.send(());
    }
}

/// Serves until stdin ends, or until the [`Ender`] is used. `version` is what the server says it is of.
pub fn serve(
    toolbox: impl Toolbox,
    version: &str,
    hand_over: impl FnOnce(Ender) -> io::Result<()>,
) -> io::Result<()> {
    let (ender, ended) = tokio::sync::mpsc::unbounded_channel();
    // One is kept: a channel that nobody can use any more has an end, too.
    let ender = Ender(ender);
    hand_over(ender.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let (alive, all_gone) = mpsc::channel();
    let outcome = runtime.block_on(server::serve(toolbox, version, ended, alive));
    // The thread that reads stdin may wait for a line that never comes.
    runtime.shutdown_background();
    drop(ender);
    server::wait_for(&all_gone);
    outcome
}
