//! Real programs and real signals, which this process sends to itself.
#![cfg(unix)]

use oomph_child::{Ended, Listener, code_of};
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Signals go to the whole process, so one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tests may be run under nohup, or in the background where Ctrl-C is ignored: those signals are then not delivered.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}

/// Runs a shell's text, which makes the file `$READY` when it is ready to be sent a signal.
fn run(text: &str, signal: Option<Signal>, patience: Option<Duration>) -> io::Result<Ended> {
    let _alone = alone();
    let ready = std::env::temp_dir().join(format!("oomph-child-{}", std::process::id()));
    let _ = std::fs::remove_file(&ready);
    let mut listener = Listener::start()?;
    let sender = signal.map(|signal| {
        let ready = ready.clone();
        std::thread::spawn(move || {
            let until = Instant::now() + Duration::from_secs(60);
            while !ready.exists() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            kill_process(getpid(), signal)
        })
    });
    let ended = listener.run(Command::new("sh").args(["-c", text]).env("READY", &ready), patience);
    if let Some(sender) = sender {
        assert!(sender.join().is_ok_and(|sent| sent.is_ok()));
    }
    let _ = std::fs::remove_file(&ready);
    ended
}

const WAITS: &str = "touch $READY; while :; do sleep 0.05; done";

#[test]
fn the_programs_own_code_is_returned() -> io::Result<()> {
    assert_eq!(run("exit 7", None, None)?.code(), 7);
    assert_eq!(run("kill -9 $$", None, None)?.code(), code_of(9));
    assert_eq!(run("true", None, None)?.signal, None);
    Ok(())
}

#[test]
fn what_asks_to_end_is_passed_on() -> io::Result<()> {
    for (signal, number) in [(Signal::TERM, 15), (Signal::HUP, 1)] {
        if is_ignored(signal) {
            continue;
        }
        let saves = format!("trap 'exit 5' TERM HUP; {WAITS}");
        let ended = run(&saves, Some(signal), None)?;
        assert_eq!((ended.code(), ended.signal), (5, Some(number)));
        assert_eq!(run(WAITS, Some(signal), None)?.code(), code_of(number));
    }
    Ok(())
}

#[test]
fn what_programs_use_for_themselves_is_passed_on_and_ends_nobody() -> io::Result<()> {
    let ended = run(&format!("trap 'exit 6' USR1; {WAITS}"), Some(Signal::USR1), None)?;
    assert_eq!((ended.code(), ended.signal), (6, None));
    Ok(())
}

/// Whoever ends like this without a listener takes nobody along.
#[test]
fn whatever_would_end_this_process_reaches_the_program() -> io::Result<()> {
    let ending = [
        Signal::INT,
        Signal::QUIT,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::XCPU,
        Signal::XFSZ,
        Signal::IO,
    ];
    for signal in ending.into_iter().filter(|signal| !is_ignored(*signal)) {
        let number = signal.as_raw();
        let ended = run(&format!("trap 'exit 9' {number}; {WAITS}"), Some(signal), None)?;
        assert_eq!((ended.code(), ended.signal), (9, Some(number)));
    }
    Ok(())
}

#[test]
fn a_program_that_goes_on_is_killed_when_patience_ends() -> io::Result<()> {
    let stubborn = format!("trap '' TERM; {WAITS}");
    let ended = run(&stubborn, Some(Signal::TERM), Some(Duration::from_millis(200)))?;
    assert_eq!((ended.code(), ended.signal), (code_of(9), Some(15)));
    Ok(())
}

#[test]
fn nothing_is_started_after_a_signal() -> io::Result<()> {
    let _alone = alone();
    let mut listener = Listener::start()?;
    assert_eq!(listener.heard(), None);
    kill_process(getpid(), Signal::TERM)?;
    // Another thread may be the one that it is delivered to.
    while listener.heard().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let started = listener.run(&mut Command::new("true"), None);
    assert_eq!(started.map_err(|error| error.kind()), Err(io::ErrorKind::Interrupted));
    assert_eq!(listener.heard(), Some(15));
    Ok(())
}

#[test]
fn what_is_stopped_from_another_thread_ends_and_no_other_listener_hears_of_it() -> io::Result<()> {
    let _alone = alone();
    let (mut listener, mut other) = (Listener::start()?, Listener::start()?);
    let stopper = listener.stopper();
    let began = Instant::now();
    let stopping = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stopper.stop();
    });
    let ended = listener.run(Command::new("sleep").arg("60"), None)?;
    assert!(stopping.join().is_ok());
    assert_eq!((ended.code(), ended.signal), (code_of(15), Some(15)));
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(other.heard(), None);
    let started = listener.run(&mut Command::new("true"), None);
    assert_eq!(started.map_err(|error| error.kind()), Err(io::ErrorKind::Interrupted));
    Ok(())
}

#[test]
fn a_program_that_takes_too_long_is_killed() -> io::Result<()> {
    let _alone = alone();
    let mut listener = Listener::start()?;
    let within = Some(Duration::from_millis(100));
    let began = Instant::now();
    let ended = listener.run_within(Command::new("sleep").arg("60"), None, within)?;
    assert_eq!((ended.code(), ended.signal), (code_of(9), None));
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(
        listener.run_within(&mut Command::new("true"), None, Some(Duration::from_secs(60)))?.code(),
        0
    );
    Ok(())
}
