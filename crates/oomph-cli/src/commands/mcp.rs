//! `oomph mcp`: the verbs as tools for language models.

use super::CommandLine;
use crate::Outcome;
use crate::printer::Printer;
use crate::roots::Roots;
use crate::tools::Tools;
use clap::{Args, CommandFactory, Parser};
use oomph_child::Listener;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Let a language model ask: the verbs as tools of a Model Context Protocol server
///
/// Serves explain, replay, tune, diff, doctor and predict on stdin and stdout, to whatever speaks
/// the Model Context Protocol: Claude Desktop, Claude Code, Cursor and others. A tool takes the
/// options of its verb and answers with what the verb prints, as text and as its JSON. Set it up in
/// the client's file of servers (claude_desktop_config.json, .mcp.json, .cursor/mcp.json):
///
///   {"mcpServers":
///     {"oomph": {"command": "oomph", "args": ["mcp", "--root", "/path/to/my/project"]}}
///   }
///
/// It only reads, and only below its folders: a path that leads elsewhere is refused, also through
/// a link. predict runs a script of the user's, as `oomph predict` does, so it is refused unless the
/// server is started with --allow-run. The server ends when its client does.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:\n  oomph mcp                                        # reads below the current folder\n  oomph mcp --root ~/project --root /data/runs\n  oomph mcp --allow-run --python .venv/bin/python  # predict, too\n  claude mcp add oomph -- oomph mcp                # for Claude Code"
)]
pub(crate) struct Arguments {
    /// Let predict run scripts that lie below the folders
    #[arg(long)]
    pub(crate) allow_run: bool,
    /// Where files may be read; may be given several times, and relative paths begin at the first [default: the current folder]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) root: Vec<PathBuf>,
    /// The interpreter that has PyTorch, for predict and doctor [default: python3, or that of the active environment]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let python = arguments.python.as_deref().map(named).transpose()?;
    let roots = Roots::of(&arguments.root)?;
    roots.enter()?;
    let tools = Tools::new(&CommandLine::command(), call, roots, arguments.allow_run, python)?;
    // From here on signals end calls, and then the server: what a call started is not left behind.
    let mut listener = Listener::start()?;
    let heard = Arc::new(OnceLock::new());
    let tell = Arc::clone(&heard);
    oomph_mcp::serve(tools, env!("CARGO_PKG_VERSION"), move |ender| {
        if io::stdin().is_terminal() {
            printer.note(
                "this waits for a client of the Model Context Protocol; oomph mcp --help says how to set one up, and Ctrl-C ends it",
            );
        }
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let _ = tell.set(listener.wait());
            ender.end();
        })?;
        Ok(())
    })?;
    Ok(heard.get().map_or(Outcome::Fine, |signal| Outcome::Interrupted(*signal)))
}

/// As the command does what is typed.
fn call(typed: &[OsString], printer: &mut Printer) -> anyhow::Result<Outcome> {
    CommandLine::try_parse_from(typed)?.command.run(printer)
}

/// A program by its name is looked for on the path; any other is meant from the folder that this was started in.
fn named(python: &std::path::Path) -> io::Result<PathBuf> {
    match python.components().count() {
        1 => Ok(python.to_owned()),
        _ => std::path::absolute(python),
    }
}
