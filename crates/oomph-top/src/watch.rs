//! The live screen: takes samples, keys and signals in, draws, and gives the terminal back however it ends.
//!
//! Samples are taken in a thread of their own, because a driver may take its time; so are keys and signals. All of them come
//! through one channel, and nothing happens between them.

use crate::Options;
use crate::app::{App, Effect};
use crate::confirm::Target;
use crate::interval::Interval;
use crate::job;
use crate::keys::{Key, key};
use crate::lines::after;
use crate::place::Place;
use crate::screen::draw;
use crate::taking::{Taken, Taker};
use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::Rect;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

/// How often the process in a question is checked: no samples come while the screen is paused.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What the screen receives.
enum Message {
    Sample(Box<Taken>),
    Key(Key),
    /// The terminal has another size.
    Resized,
    /// To the shell: by Ctrl-Z, or by a signal from elsewhere.
    Stop,
    /// Back from a stop.
    Resumed,
    /// A signal that asks to end.
    Signal(i32),
    /// No keys can come any more: the terminal is gone.
    Closed,
}

/// What the sampling thread receives.
enum Pace {
    Every(Interval),
    Pause(bool),
}

/// Shows the screen until it is left; says which signal asked to end, if one did.
pub fn watch(options: &Options) -> anyhow::Result<Option<i32>> {
    // A few: who samples waits for who draws.
    let (sender, messages) = mpsc::sync_channel(8);
    let pace = sample_in_background(options.interval, sender.clone());
    hear_signals(sender.clone())?;
    let mut app = App::new(options, Place::here());
    let mut screen = Screen::open()?;
    read_keys(sender);
    let ended = run(&mut app, &mut screen, &messages, &pace);
    drop(screen);
    ended
}

/// The terminal while it is ours.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    fn open() -> anyhow::Result<Self> {
        // It also ensures that a panic gives the terminal back before its message.
        let terminal = ratatui::try_init().inspect_err(|_| give_back());
        Ok(Self { terminal: terminal.context("the terminal cannot be used; try oomph top --once")? })
    }

    fn take_again(&mut self) -> io::Result<()> {
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        // Everything is drawn anew. `clear` would ask where the cursor is, and the answer would come as a key.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    // Where the terminal is gone, there is nothing to give back.
    let _ = ratatui::try_restore();
    let _ = execute!(io::stdout(), Show);
}

fn run(
    app: &mut App,
    screen: &mut Screen,
    messages: &Receiver<Message>,
    pace: &Sender<Pace>,
) -> anyhow::Result<Option<i32>> {
    let mut target: Option<Target> = None;
    // Whether the terminal was left to the shell.
    let mut is_away = false;
    loop {
        if target.as_ref().is_some_and(Target::has_ended) {
            target = None;
            app.gone();
        }
        if !is_away && screen.terminal.draw(|frame| draw(frame, app)).is_err() {
            // The reader is gone.
            return Ok(None);
        }
        let first = if target.is_some() {
            messages.recv_timeout(LOOK_AGAIN)
        } else {
            messages.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return Ok(None);
        }
        // What is there already is dealt with before the next drawing: a held key does not queue drawings.
        for one in first.into_iter().chain(messages.try_iter()) {
            // Whatever comes, comes after the stop. Whoever had the terminal meanwhile may have left anything.
            if is_away || matches!(one, Message::Resumed) {
                screen.take_again()?;
                is_away = false;
            }
            match one {
                Message::Sample(taken) => app.take(*taken),
                Message::Resized | Message::Resumed => {}
                Message::Stop if job::has_shell() => {
                    give_back();
                    job::stop();
                    is_away = true;
                }
                Message::Stop => {}
                Message::Signal(signal) => return Ok(Some(signal)),
                Message::Closed => return Ok(None),
                Message::Key(key) => match app.press(key) {
                    Effect::None => {}
                    Effect::Quit => return Ok(None),
                    // It comes back as a signal.
                    Effect::Suspend => job::ask_to_stop(),
                    Effect::Interval(interval) => drop(pace.send(Pace::Every(interval))),
                    Effect::Pause(is_paused) => drop(pace.send(Pace::Pause(is_paused))),
                    Effect::Release => target = None,
                    Effect::Aim(id) => match Target::aim(id) {
                        Ok((held, named)) => {
                            target = Some(held);
                            app.ask(id, &named);
                        }
                        Err(why) => app.answer(None, Err(why)),
                    },
                    Effect::Send(way) => {
                        if let Some(target) = &target {
                            app.answer(Some(way), target.send(way));
                        }
                    }
                },
            }
        }
    }
}

fn sample_in_background(interval: Interval, sender: SyncSender<Message>) -> Sender<Pace> {
    let (pace, changes) = mpsc::channel();
    std::thread::spawn(move || {
        let mut taker = Taker::hurried();
        let mut interval = interval;
        let mut is_paused = false;
        let mut next = Instant::now();
        loop {
            if !is_paused && Instant::now() >= next {
                if sender.send(Message::Sample(Box::new(taker.take()))).is_err() {
                    return;
                }
                next = after(next, interval.duration());
            }
            let change = if is_paused {
                changes.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                changes.recv_timeout(next.saturating_duration_since(Instant::now()))
            };
            match change {
                Ok(Pace::Every(changed)) => {
                    interval = changed;
                    next = Instant::now();
                }
                Ok(Pace::Pause(changed)) => {
                    is_paused = changed;
                    next = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    pace
}

fn hear_signals(sender: SyncSender<Message>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT])?;
    std::thread::spawn(move || {
        let mut was_asked = false;
        for signal in signals.forever() {
            if let SIGTSTP | SIGCONT = signal {
                let _ = sender.send(if signal == SIGTSTP { Message::Stop } else { Message::Resumed });
                continue;
            }
            // Asked twice, or the screen no longer reacts (a terminal that takes no output): at once.
            if was_asked || sender.try_send(Message::Signal(signal)).is_err() {
                give_back();
                std::process::exit(128 + signal);
            }
            was_asked = true;
        }
    });
    Ok(())
}

fn read_keys(sender: SyncSender<Message>) {
    std::thread::spawn(move || {
        loop {
            let message = match event::read() {
                Ok(Event::Key(event)) => match key(event) {
                    Some(key) => Message::Key(key),
                    None => continue,
                },
                Ok(Event::Resize(..)) => Message::Resized,
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => Message::Closed,
            };
            let is_last = matches!(message, Message::Closed);
            if sender.send(message).is_err() || is_last {
                return;
            }
        }
    });
}
