//! `/proc/<pid>/stat`: the one file of a process that is read each time, because it is cheap and shows what else has changed.

use std::path::Path;

/// The kernel's mark on its own threads, in field 9.
pub(crate) const KERNEL_THREAD: u64 = 0x0020_0000;
/// The kernel's mark on a process that was forked and has not called `exec` since, in field 9.
const NO_EXEC_YET: u64 = 0x40;

/// What is taken from `stat`.
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: u32,
    /// In ticks since the machine started: with its number it names a process for good.
    pub(crate) start: u64,
    pub(crate) is_kernel: bool,
    pub(crate) program: Program,
    pub(crate) trace: Trace,
}

/// What `exec` changes, though pid, start and often the name stay. The addresses of code and stack are shown only to users who may trace the
/// process: of other users' processes, the first `exec` after a fork is seen, and no later one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Program {
    has_no_own: bool,
    code: u64,
    stack: u64,
}

/// What changes when memory changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    faults: u64,
    /// Ticks of processor time.
    pub(crate) processor: u64,
    resident: u64,
    is_dead: bool,
}

impl Stat {
    pub(crate) fn of(text: &[u8]) -> Option<Self> {
        // The name is the program's choice: it may hold spaces, brackets and line ends. The last bracket is the kernel's.
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        // From field 4 on.
        let mut numbers = [0u64; 25];
        for (number, text) in numbers.iter_mut().zip(fields.by_ref()) {
            *number = text.parse().unwrap_or(0);
        }
        let at = |field: usize| numbers[field - 4];
        Some(Self {
            name,
            state,
            parent: u32::try_from(at(4)).unwrap_or(0),
            start: at(22),
            is_kernel: at(9) & KERNEL_THREAD != 0,
            program: Program { has_no_own: at(9) & NO_EXEC_YET != 0, code: at(26), stack: at(28) },
            trace: Trace {
                faults: at(10).wrapping_add(at(12)),
                processor: at(14).saturating_add(at(15)),
                resident: at(24),
                is_dead: state == 'Z',
            },
        })
    }
}

/// When a process started, if it is there.
pub(crate) fn start_ticks(proc: &Path, pid: u32) -> Option<u64> {
    let text = std::fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    Stat::of(&text).map(|stat| stat.start)
}
