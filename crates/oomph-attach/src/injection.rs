//! A call in another process: a thread of it is stopped, makes the call, and goes on as if nothing had been.
//!
//! All registers are put back, and the 128 bytes below the stack that a function may use without saying so are left alone. A call of the system that was interrupted begins anew, which the kernel
//! does by itself when the registers are those that it knows. The call comes back to an instruction that leads to itself: no signal is needed to hear of its end, so that no handler of
//! the program's is touched, and were this process to be killed in that instant, the thread would turn in place, and not crash.
//!
//! Signals that come meanwhile are the program's, and reach it. Those for which this library has no name cannot be passed on by hand: then the tracing thread ends, the kernel passes the
//! signal on, and another goes on where that one was.
//!
//! A process may become another program meanwhile, in which those addresses are something else. What comes back is written before anything is called, through what was opened when the addresses were found: that fails then.
//!
//! Boundary: what is called wherever a thread may be is `Py_AddPendingCall`, which takes one lock, for some instructions, and no memory; and `mmap`, for a place for its text, which stays, for nobody knows when it
//! has been read. Anything else is called only where a thread waits for the world ([`call_idle`]), and what that may be is the caller's to know.

use crate::error::AttachError;
use crate::interpreter::{Functions, Interpreter};
use crate::process::{LOCK, Process, is_idle};
use nix::errno::Errno;
use nix::libc::{user_fpregs_struct, user_regs_struct};
use nix::sys::ptrace::{self, Options, regset};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How the kernel numbers a stop that was asked for.
const EVENT_STOP: i32 = 128;
/// What a function may use below the stack without saying so.
const RED_ZONE: u64 = 128;
/// Whether strings are gone through backwards: not when a function begins.
const BACKWARDS: u64 = 1 << 10;
const PAGE: u64 = 4096;
const READ_AND_WRITE: u64 = 3;
const PRIVATE_AND_EMPTY: u64 = 0x22;
/// No call of the system.
const NONE: u64 = u64::MAX;

/// A thread that the kernel does not stop in this time waits in it.
const TO_STOP: Duration = Duration::from_secs(2);
/// A call that was begun must end: a machine that swaps takes its time.
const TO_RETURN: Duration = Duration::from_secs(60);
/// A thread in a call of the system is waited for so long, before one is stopped wherever it is.
const TO_FIND: Duration = Duration::from_millis(200);

pub(crate) fn is_possible() -> bool {
    true
}

/// Where the text lies in the other process, once there is a place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page(u64);

/// Has the main thread run a text: when it comes to it.
pub(crate) fn call(
    process: &Process,
    interpreter: &Interpreter,
    page: &mut Page,
    text: &[u8],
) -> Result<(), AttachError> {
    let mut text = text.to_vec();
    text.push(0);
    if text.len() as u64 > PAGE {
        return Err(AttachError::Other { pid: process.pid, why: "the text is too long".to_owned() });
    }
    let mut injection = Injection {
        thread: pid(chosen(process)),
        memory: &interpreter.memory,
        functions: interpreter.functions,
        text,
        page: page.0,
        saved: None,
        stage: Stage::Place,
        is_calling: false,
    };
    let outcome = injection.run();
    page.0 = injection.page;
    outcome.map_err(|halt| said(process, interpreter, halt))
}

/// Calls a function without arguments in a thread that waits for the world, if there is one. Whether it gave 0.
pub(crate) fn call_idle(
    process: &Process,
    interpreter: &Interpreter,
    function: u64,
) -> Result<bool, AttachError> {
    let is_waiting = |thread: &u32| process.call_of(*thread).is_some_and(is_idle);
    let Some(thread) = process.threads().into_iter().find(is_waiting) else { return Ok(false) };
    let mut injection = Injection {
        thread: pid(thread),
        memory: &interpreter.memory,
        functions: interpreter.functions,
        text: Vec::new(),
        page: 0,
        saved: None,
        stage: Stage::Idle(function),
        is_calling: false,
    };
    match injection.run() {
        Ok(()) => Ok(true),
        Err(Halt::NotIdle | Halt::Full) => Ok(false),
        Err(halt) => Err(said(process, interpreter, halt)),
    }
}

/// Has the main thread look up, if it waits for a lock: such a wait may end at any time, and Python then does what it was asked to do and waits on.
pub(crate) fn wake(process: &Process) {
    if process.call_of(process.pid) != Some(LOCK) {
        return;
    }
    let thread = pid(process.pid);
    let woken = on_its_own(|| {
        seized(thread, TO_STOP)?;
        let mut registers = ptrace::getregs(thread)?;
        let is_waiting = registers.orig_rax == u64::from(LOCK) && is_to_begin_anew(registers.rax);
        if is_waiting {
            registers.rax = (-(Errno::EINTR as i64)).cast_unsigned();
            registers.orig_rax = NONE;
            ptrace::setregs(thread, registers)?;
        }
        ptrace::detach(thread, None)?;
        Ok(())
    });
    // Otherwise it waits on, as it did.
    drop(woken);
}

/// What the kernel leaves in place of a result where a call of the system was interrupted.
fn is_to_begin_anew(result: u64) -> bool {
    matches!(result.cast_signed(), -516 | -514..=-512)
}

/// Why it went no further.
#[derive(Debug)]
enum Halt {
    /// A signal without a name here: another tracing thread must go on.
    Unnamed,
    /// The process has ended, or became another program.
    Gone,
    /// The kernel does not stop the thread.
    Busy,
    /// The call does not come back.
    Stuck,
    /// The function has refused: there is no room among the pending calls.
    Full,
    /// The thread waits no longer.
    NotIdle,
    /// The kernel says so.
    Errno(Errno),
}

impl From<Errno> for Halt {
    fn from(errno: Errno) -> Halt {
        if errno == Errno::ESRCH { Halt::Gone } else { Halt::Errno(errno) }
    }
}

fn said(process: &Process, interpreter: &Interpreter, halt: Halt) -> AttachError {
    let pid = process.pid;
    match halt {
        _ if !interpreter.is_there() => AttachError::Ended(pid),
        Halt::Errno(Errno::EPERM | Errno::EACCES) => process.denied(),
        Halt::Busy | Halt::Stuck | Halt::Unnamed | Halt::Gone | Halt::NotIdle => AttachError::Busy(pid),
        Halt::Full => AttachError::Full(pid),
        Halt::Errno(errno) => AttachError::Other { pid, why: errno.desc().to_owned() },
    }
}

/// A thread that waits in a call of the system holds nothing of Python's; the main one if it can be.
fn chosen(process: &Process) -> u32 {
    let until = Instant::now() + TO_FIND;
    loop {
        let waiting = process.threads().into_iter().find(|thread| process.call_of(*thread).is_some());
        match waiting {
            Some(thread) => return thread,
            None if Instant::now() > until => return process.pid,
            None => sleep(Duration::from_millis(1)),
        }
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap_or(0))
}

/// A thread is traced by a thread, and let go when that one ends.
fn on_its_own<T: Send>(work: impl FnOnce() -> Result<T, Halt> + Send) -> Result<T, Halt> {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or(Err(Halt::Busy)))
}

/// Stops the thread.
fn seized(thread: Pid, patience: Duration) -> Result<(), Halt> {
    // One that had it before may be just about to let it go.
    let until = Instant::now() + patience / 20;
    while let Err(errno) = ptrace::seize(thread, Options::empty()) {
        if errno != Errno::EPERM || Instant::now() > until {
            return Err(errno.into());
        }
        sleep(Duration::from_millis(2));
    }
    ptrace::interrupt(thread)?;
    stop(thread, patience)
}

/// Waits until the thread is stopped, as it was asked to be. Signals that come before are passed on.
fn stop(thread: Pid, longest: Duration) -> Result<(), Halt> {
    let until = Instant::now() + longest;
    loop {
        match waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::PtraceEvent(_, _, EVENT_STOP)) => return Ok(()),
            Ok(WaitStatus::Stopped(_, signal)) => ptrace::cont(thread, signal)?,
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
                return Err(Halt::Gone);
            }
            Ok(WaitStatus::StillAlive) if Instant::now() > until => return Err(Halt::Busy),
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => sleep(Duration::from_micros(50)),
            Ok(_) => ptrace::cont(thread, None)?,
            Err(Errno::EINVAL) => return Err(Halt::Unnamed),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// What of a thread is put back.
struct Saved {
    registers: user_regs_struct,
    floating: user_fpregs_struct,
}

enum Stage {
    /// A place for the text.
    Place,
    /// The call of Python.
    Add,
    /// A call of this function, if the thread waits for the world.
    Idle(u64),
    Done,
}

struct Injection<'a> {
    thread: Pid,
    memory: &'a File,
    functions: Functions,
    text: Vec<u8>,
    page: u64,
    saved: Option<Saved>,
    stage: Stage,
    is_calling: bool,
}

impl Injection<'_> {
    fn run(&mut self) -> Result<(), Halt> {
        loop {
            match on_its_own(|| self.stopped()) {
                Err(Halt::Unnamed) => {}
                outcome => return outcome,
            }
        }
    }

    /// In a tracing thread: goes on from where the last one was, and puts everything back.
    fn stopped(&mut self) -> Result<(), Halt> {
        let patience = if self.saved.is_none() { TO_STOP } else { TO_RETURN };
        seized(self.thread, patience)?;
        if self.saved.is_none() {
            let registers = ptrace::getregs(self.thread)?;
            let floating = ptrace::getregset::<regset::NT_PRFPREG>(self.thread)?;
            self.saved = Some(Saved { registers, floating });
        }
        match self.advance() {
            Err(Halt::Unnamed) => Err(Halt::Unnamed),
            outcome => {
                self.put_back()?;
                outcome
            }
        }
    }

    fn put_back(&mut self) -> Result<(), Halt> {
        if let Some(saved) = self.saved.take() {
            ptrace::setregset::<regset::NT_PRFPREG>(self.thread, saved.floating)?;
            ptrace::setregs(self.thread, saved.registers)?;
        }
        ptrace::detach(self.thread, None)?;
        Ok(())
    }

    fn advance(&mut self) -> Result<(), Halt> {
        loop {
            let (function, arguments) = match self.stage {
                Stage::Place if self.page != 0 => {
                    self.memory
                        .write_all_at(&self.text, self.page)
                        .map_err(|_| Halt::Errno(Errno::EFAULT))?;
                    self.stage = Stage::Add;
                    continue;
                }
                Stage::Place => (self.functions.mmap, [0, PAGE, READ_AND_WRITE, PRIVATE_AND_EMPTY, NONE, 0]),
                Stage::Add => (self.functions.add, [self.functions.run, self.page, 0, 0, 0, 0]),
                Stage::Idle(_) if !self.is_calling && !self.is_idle() => return Err(Halt::NotIdle),
                Stage::Idle(function) => (function, [0; 6]),
                Stage::Done => return Ok(()),
            };
            if !self.is_calling {
                self.begin(function, arguments)?;
                self.is_calling = true;
            }
            let result = self.returned()?;
            self.is_calling = false;
            match self.stage {
                Stage::Place if result > NONE - PAGE => return Err(Halt::Errno(Errno::ENOMEM)),
                Stage::Place => self.page = result,
                // Of an int, half of the register counts.
                Stage::Add | Stage::Idle(_) if result & 0xffff_ffff != 0 => return Err(Halt::Full),
                Stage::Add | Stage::Idle(_) => self.stage = Stage::Done,
                Stage::Done => {}
            }
        }
    }

    /// Whether it was stopped while it waited for the world.
    fn is_idle(&self) -> bool {
        let is_idle = |call: u64| u32::try_from(call).is_ok_and(is_idle);
        self.saved
            .as_ref()
            .is_some_and(|saved| is_idle(saved.registers.orig_rax) && is_to_begin_anew(saved.registers.rax))
    }

    /// Puts the stopped thread at the beginning of a function.
    fn begin(&mut self, function: u64, arguments: [u64; 6]) -> Result<(), Halt> {
        let Some(saved) = &self.saved else { return Err(Halt::Gone) };
        let mut registers = saved.registers;
        // As after a call: the stack was aligned to 16, and has the address to come back to.
        registers.rsp = (registers.rsp.wrapping_sub(RED_ZONE) & !15).wrapping_sub(8);
        let back = self.functions.spin.to_le_bytes();
        self.memory.write_all_at(&back, registers.rsp).map_err(|_| Halt::Errno(Errno::EFAULT))?;
        registers.rip = function;
        [registers.rdi, registers.rsi, registers.rdx, registers.rcx, registers.r8, registers.r9] = arguments;
        registers.rax = 0;
        // Nothing begins anew.
        registers.orig_rax = NONE;
        registers.eflags &= !BACKWARDS;
        ptrace::setregs(self.thread, registers)?;
        Ok(())
    }

    /// What the function gave: when the thread has come back, and is stopped again.
    fn returned(&mut self) -> Result<u64, Halt> {
        let until = Instant::now() + TO_RETURN;
        let mut pause = Duration::from_micros(50);
        loop {
            let registers = ptrace::getregs(self.thread)?;
            if registers.rip == self.functions.spin {
                return Ok(registers.rax);
            }
            if Instant::now() > until {
                return Err(Halt::Stuck);
            }
            ptrace::cont(self.thread, None)?;
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
            ptrace::interrupt(self.thread)?;
            stop(self.thread, TO_RETURN)?;
        }
    }
}
