//! Why nothing can be run in a process, and what to do about it.

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Not Linux on x86-64 with glibc.
    #[error("a process that runs already can be attached to on Linux on x86-64 only")]
    Platform,
    /// There is none of this number.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// It ended, before or meanwhile.
    #[error("process {0} has ended")]
    Ended(u32),
    /// It is stopped, as by Ctrl-Z.
    #[error("process {0} is stopped, and runs no Python until it goes on")]
    Stopped(u32),
    /// It is the caller itself.
    #[error("{0} is the number of this very command")]
    Itself(u32),
    /// A debugger, or another tool, has it.
    #[error("process {pid} is being traced by process {by}, and only one may")]
    Traced {
        pid: u32,
        /// Who has it.
        by: u32,
    },
    /// It has no Python in it.
    #[error("process {pid} ({name}) is no Python")]
    NotPython {
        pid: u32,
        /// What its program is called.
        name: String,
    },
    /// Its Python has no functions that others could call.
    #[error("the Python of process {0} is linked statically, or so that its functions cannot be found")]
    NoFunctions(u32),
    /// Its Python is older than what can be attached to.
    #[error("the Python of process {0} is older than 3.10")]
    TooOld(u32),
    #[error("process {pid} belongs to user {user}")]
    OtherUser {
        pid: u32,
        /// Its user's number.
        user: u32,
    },
    /// Yama, the kernel's module, forbids it.
    #[error("process {pid} may not be attached to: the kernel's setting ptrace_scope is {scope}")]
    Scope { pid: u32, scope: u32 },
    /// The kernel forbids it for another reason.
    #[error("process {0} may not be attached to: the kernel forbids it")]
    Denied(u32),
    /// It has files of its own.
    #[error("process {0} runs in a container, or with other files than oomph sees")]
    OtherFiles(u32),
    /// Its Python refuses.
    #[error("the Python of process {pid} refuses: {why}")]
    Refused {
        pid: u32,
        /// In Python's words.
        why: String,
    },
    /// It does not come to a stop.
    #[error("process {0} does not come to a stop: the kernel keeps it busy")]
    Busy(u32),
    /// Too much waits already to be done by its main thread.
    #[error("the main thread of process {0} does not come to do what others have asked of it")]
    Full(u32),
    /// Something that should not be.
    #[error("process {pid} cannot be attached to: {why}")]
    Other { pid: u32, why: String },
}

impl AttachError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Platform => "oomph run --ram PROGRAM, or oomph.record(ram=True) in the program",
            Self::NoProcess(_) | Self::NotPython { .. } | Self::Itself(_) => {
                "pgrep -af python lists what runs; where a launcher has started Python, name that process and not the launcher"
            }
            Self::Stopped(_) => "fg in its terminal, or kill -CONT with its number",
            Self::Traced { .. } => "end the debugger, strace or profiler that has it, and try again",
            Self::NoFunctions(_) | Self::TooOld(_) | Self::Full(_) => {
                "oomph run --ram PROGRAM records it from its start"
            }
            Self::OtherUser { .. } => "as that user, or with sudo",
            Self::Scope { scope: 3, .. } => {
                "that holds until the machine is started anew: oomph run --ram PROGRAM records from the start, and oomph.record(ram=True) in the program needs no rights"
            }
            Self::Scope { scope: 2, .. } => "with sudo",
            Self::Scope { .. } => {
                "with sudo, or after: sudo sysctl kernel.yama.ptrace_scope=0 (which lets any process of yours be attached to, until the machine is started anew)"
            }
            Self::Denied(_) => {
                "in a container: start it with --cap-add=SYS_PTRACE (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]); elsewhere: with sudo"
            }
            Self::OtherFiles(_) => {
                "run oomph where the process runs: docker exec CONTAINER oomph run --ram --attach PID, with the number that the process has there"
            }
            Self::Refused { .. } => {
                "PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug forbid it; oomph run --ram PROGRAM records from the start"
            }
            Self::Busy(_) => "try again",
            Self::Ended(_) | Self::Other { .. } => return None,
        })
    }
}
