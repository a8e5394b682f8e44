//! The shell's job that this is part of, and how it stops: by Ctrl-Z, or by a SIGTSTP from anywhere.

use oomph_host::Standing;
use rustix::process::{
    Pid, Signal, getpgid, getpgrp, getpid, getppid, getsid, kill_current_process_group, kill_process,
};

/// Asks all processes of the job to stop, this one too, as the terminal does where Ctrl-Z is not a key.
pub(crate) fn ask_to_stop() {
    // To one's own group it does not fail.
    let _ = kill_current_process_group(Signal::TSTP);
}

/// Stops this process, and returns when it is continued.
pub(crate) fn stop() {
    // SIGTSTP would only be heard again.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Whether there is a shell that could start it again. Where there is none, the kernel ignores SIGTSTP.
pub(crate) fn has_shell() -> bool {
    let mut above = getppid();
    while let Some(parent) = above {
        if getpgid(Some(parent)) != Ok(getpgrp()) {
            return getsid(Some(parent)).is_ok_and(|session| getsid(None) == Ok(session));
        }
        // A script that started this is of the job too.
        above = parent_of(parent);
    }
    false
}

fn parent_of(process: Pid) -> Option<Pid> {
    let number = u32::try_from(process.as_raw_pid()).ok()?;
    Pid::from_raw(i32::try_from(Standing::of(number)?.parent).ok()?)
}
