//! Python 3.14 and newer run a file in another process of the same version by themselves (PEP 768): no thread is stopped for it.

use crate::error::AttachError;
use crate::process::Process;
use std::path::Path;
use std::process::{Command, Stdio};

/// Which Pythons do.
pub(crate) const SINCE: (u8, u8) = (3, 14);

/// The arguments are the process and the file, by any bytes. What Python says against it is told from not getting so far.
const ASK: &str = "\
import sys
try:
    sys.remote_exec(int(sys.argv[1]), sys.argv[2])
except Exception as error:
    print(f'{type(error).__name__}: {error}')
    sys.exit(3)
";
const REFUSED: i32 = 3;

/// Has the main thread of the process run a file: when it comes to it. False where its interpreter cannot be asked: it is part of another program, or has its files elsewhere.
pub(crate) fn ask(process: &Process, file: &Path) -> Result<bool, AttachError> {
    let link = process.path("exe");
    // By its own name it finds its library.
    let named = std::fs::read_link(&link).ok().filter(|path| process.sees(path).unwrap_or(false));
    let mut command = Command::new(named.unwrap_or(link));
    // Nothing of ours or of the program's: neither changes what this one does.
    command.args(["-I", "-S", "-c", ASK, &process.pid.to_string()]).arg(file).env_clear();
    for variable in ["LD_LIBRARY_PATH", "PATH"] {
        if let Some(value) = process.variable(variable) {
            command.env(variable, value);
        }
    }
    let Ok(done) = command.stdin(Stdio::null()).output() else { return Ok(false) };
    if done.status.code() != Some(REFUSED) {
        return Ok(done.status.success());
    }
    let why = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    Err(match why.starts_with("PermissionError") {
        _ if !process.is_there() => AttachError::Ended(process.pid),
        true => process.denied(),
        false => AttachError::Refused { pid: process.pid, why },
    })
}
