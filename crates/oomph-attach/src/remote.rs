//! Python 3.14 and newer run a file in another process of the same version by themselves (PEP 768): no thread is stopped for it.

use crate::error::AttachError;
use crate::process::Process;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Which Pythons do.
pub(crate) const SINCE: (u8, u8) = (3, 14);

/// The arguments are the process and the file, by any bytes.
const ASK: &str = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])";

/// Has the main thread of the process run a file: when it comes to it.
pub(crate) fn ask(process: &Process, file: &Path) -> Result<(), AttachError> {
    let link = process.path("exe");
    // By its own name it finds its library.
    let named = std::fs::read_link(&link).ok().filter(|path| process.sees(path).unwrap_or(false));
    let interpreter: PathBuf = named.unwrap_or(link);
    let mut command = Command::new(interpreter);
    // Nothing of ours or of the program's: neither changes what this one does.
    command.args(["-I", "-S", "-c", ASK, &process.pid.to_string()]).arg(file).env_clear();
    for variable in ["LD_LIBRARY_PATH", "PATH"] {
        if let Some(value) = process.variable(variable) {
            command.env(variable, value);
        }
    }
    let done = command.stdin(Stdio::null()).output().map_err(|error| process.wrong(&error))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let why = said.trim_end().lines().next_back().unwrap_or("no reason is given").to_owned();
    if !process.is_there() {
        return Err(AttachError::Ended(process.pid));
    }
    if why.starts_with("PermissionError") {
        return Err(process.denied());
    }
    Err(AttachError::Refused { pid: process.pid, why })
}
