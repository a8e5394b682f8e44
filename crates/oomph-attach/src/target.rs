//! A process with a Python in it that can be given a line to run.

use crate::error::AttachError;
use crate::injection::{self, Page};
use crate::interpreter::Interpreter;
use crate::process::Process;
use crate::remote;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A process with a Python that can be asked.
#[derive(Debug)]
pub struct Target {
    process: Process,
    interpreter: Interpreter,
    page: Page,
}

impl Target {
    /// Looks at a process. Nothing is changed in it.
    pub fn find(process: Process) -> Result<Target, AttachError> {
        if !injection::is_possible() {
            return Err(AttachError::Platform);
        }
        let interpreter = Interpreter::find(&process)?;
        Ok(Target { process, interpreter, page: Page::default() })
    }

    /// Whether the process runs still, and is the same program.
    pub fn is_there(&self) -> bool {
        self.process.is_there() && self.interpreter.is_there()
    }

    /// Has the main thread of the process run a file of Python, as a program of its own, when it comes to it. Both must see the file, and an error that the file raises is lost.
    /// `beside`: where what asks may be written.
    pub fn run(&mut self, file: &Path, beside: &Path) -> Result<(), AttachError> {
        let text = asking(file);
        if self.interpreter.version >= remote::SINCE {
            let path = beside.join("ask.py");
            let written = std::fs::write(&path, &text)
                .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o644)));
            written.map_err(|error| AttachError::Other { pid: self.process.pid, why: error.to_string() })?;
            if remote::ask(&self.process, &path)? {
                return Ok(());
            }
        }
        injection::call(&self.process, &self.interpreter, &mut self.page, text.as_bytes())
    }

    /// Calls a function of C without arguments, if a thread of the process waits for the world: for input, for time, for a child. Whether it was called and gave 0. The function must wait for nothing that such a thread may hold.
    pub fn call_idle(&self, function: u64) -> Result<bool, AttachError> {
        injection::call_idle(&self.process, &self.interpreter, function)
    }

    /// Has the main thread look up if it waits for a lock, so that it runs the line now.
    pub fn wake(&self) {
        if self.is_there() {
            injection::wake(&self.process);
        }
    }
}

/// What runs the file, and leaves nothing: neither a name nor an error. Ctrl-C that comes meanwhile is the program's.
fn asking(file: &Path) -> String {
    let bytes: String = file.as_os_str().as_bytes().iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let path = format!("__import__('os').fsdecode(b'{bytes}')");
    format!(
        "try:\n exec(compile(open({path},encoding='utf-8').read(),'<oomph>','exec'),{{'__name__':'__main__','__file__':{path}}})\n\
         except KeyboardInterrupt:\n __import__('_thread').interrupt_main()\n\
         except BaseException:\n pass\n"
    )
}

#[cfg(test)]
mod tests {
    use super::asking;
    use std::path::Path;

    #[test]
    fn a_path_of_any_bytes_is_text_of_python() {
        let text = asking(Path::new("/tmp/it's \\ ü"));
        assert!(text.contains(r"b'\x2f\x74\x6d\x70\x2f\x69\x74\x27\x73\x20\x5c\x20\xc3\xbc'"), "{text}");
        assert!(text.is_ascii());
    }
}
