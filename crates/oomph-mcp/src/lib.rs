//! Tools for language models: a server of the Model Context Protocol on stdin and stdout.
//!
//! Purpose: speaks the protocol, starts each call on a thread of its own, tells how far it is, and hands a cancellation on.
//! Boundary: knows no verb and reads no file. What the tools are, and what they answer, is the [`Toolbox`]'s; nothing else in the
//! process may write to stdout while a server runs.

mod going;
#[cfg(feature = "protocol")]
mod server;
#[cfg(feature = "protocol")]
mod serving;
#[cfg(not(feature = "protocol"))]
#[path = "absent.rs"]
mod serving;

pub use going::Going;
pub use serving::{Ender, serve};

use serde_json::{Map, Value};

/// What a tool does to the world outside of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It reads files, and that is all.
    Reads,
    /// It runs a program, which does what it does.
    Runs,
}

/// A tool, as a client sees it.
#[derive(Clone, Debug)]
pub struct Tool {
    /// What it is called by.
    pub name: &'static str,
    /// What it is for, in one line.
    pub title: String,
    /// What it is for, and when to call it.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input: Map<String, Value>,
    /// The JSON Schema of its document.
    pub output: Map<String, Value>,
    /// What it does besides.
    pub effect: Effect,
}

/// What a call came to.
#[derive(Clone, Debug)]
pub struct Answer {
    /// For people: the answer first, then what was said beside it.
    pub text: Vec<String>,
    pub document: Value,
}

/// The tools, and what they answer.
pub trait Toolbox: Send + Sync + 'static {
    /// What to call when, in a few sentences.
    fn instructions(&self) -> String;

    /// All tools, in the order in which they are listed.
    fn tools(&self) -> Vec<Tool>;

    /// Calls one of them, on a thread that may wait. What goes wrong is said in words, with what to do.
    fn call(&self, name: &str, arguments: Map<String, Value>, going: &Going) -> Result<Answer, String>;
}
