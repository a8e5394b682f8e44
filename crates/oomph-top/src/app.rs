//! The state of the screen: the last sample, what is chosen, what is open. Knows no terminal: keys come in, and what must be done
//! outside (a signal, another interval) goes out as an [`Effect`].

use crate::cards::{Card, cards};
use crate::confirm::Named;
use crate::history::History;
use crate::interval::Interval;
use crate::keys::Key;
use crate::place::Place;
use crate::ram::{Held, HeldBy};
use crate::rates::{Id, Rates, id};
use crate::rows::{Choice, Row, Sort, rows};
use crate::taking::Taken;
use crate::words::{Glyphs, lasting};
use crate::{Options, confirm};
use oomph_host::{Process, Sample};
use oomph_words::bytes;
use std::collections::HashMap;

/// Everything that the screen shows.
pub(crate) struct App {
    pub(crate) glyphs: &'static Glyphs,
    pub(crate) color: bool,
    pub(crate) place: Place,
    pub(crate) interval: Interval,
    pub(crate) is_paused: bool,
    pub(crate) sample: Option<Sample>,
    ram: HeldBy,
    pub(crate) cards: Vec<Card>,
    /// By the cards' keys.
    pub(crate) card_history: HashMap<String, History>,
    pub(crate) ram_history: History,
    rates: Rates,
    pub(crate) choice: Choice,
    pub(crate) rows: Vec<Row>,
    /// The chosen process, and its place among the rows.
    selected: Option<(Id, usize)>,
    /// The first row that is shown; rows that fit, as of the last drawing.
    pub(crate) first: usize,
    pub(crate) page: usize,
    pub(crate) mode: Mode,
    pub(crate) has_details: bool,
    /// The first line of them that is shown.
    pub(crate) details_first: usize,
    pub(crate) message: Option<String>,
}

/// What keys mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Table,
    /// The keys, from this line on.
    Help(usize),
    /// A filter is being typed.
    Filter,
    /// A column is being chosen, the one at this place of the list.
    Sort(usize),
    /// A process may be ended.
    Confirm(Confirmation),
}

/// The question before a signal is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confirmation {
    pub(crate) id: Id,
    /// Who it is and what it holds.
    pub(crate) words: Vec<String>,
    pub(crate) stage: Stage,
    /// What became of the last try.
    pub(crate) answer: Option<String>,
}

/// How far it is with the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing was sent.
    Open,
    /// The process was asked to end.
    Sent,
    /// The process ended before anything was sent: no process is left to send it to.
    TooLate,
}

/// What must be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    Quit,
    /// Stop, as Ctrl-Z does.
    Suspend,
    /// Take samples so often.
    Interval(Interval),
    Pause(bool),
    /// Get hold of this process, so that a signal can reach no other.
    Aim(Id),
    Send(confirm::Way),
    Release,
}

impl App {
    pub(crate) fn new(options: &Options, place: Place) -> Self {
        Self {
            glyphs: Glyphs::new(options.ascii),
            color: options.color,
            place,
            interval: options.interval,
            is_paused: false,
            sample: None,
            ram: HeldBy::new(),
            cards: Vec::new(),
            card_history: HashMap::new(),
            ram_history: History::default(),
            rates: Rates::default(),
            choice: Choice {
                sort: options.sort,
                on_gpus: options.on_gpus,
                user: options.user.clone(),
                ..Choice::default()
            },
            rows: Vec::new(),
            selected: None,
            first: 0,
            page: 1,
            mode: Mode::Table,
            has_details: false,
            details_first: 0,
            message: None,
        }
    }

    pub(crate) fn take(&mut self, taken: impl Into<Taken>) {
        let Taken { sample, ram } = taken.into();
        self.rates.update(&sample);
        self.cards = cards(&sample);
        self.card_history.retain(|key, _| self.cards.iter().any(|card| &card.key == key));
        for card in self.cards.iter().filter(|card| card.said_ago.is_none()) {
            self.card_history.entry(card.key.clone()).or_default().push(card.used, card.total);
        }
        if let Some(ram) = sample.machine.ram {
            self.ram_history.push(ram.total.saturating_sub(ram.available), ram.total);
        }
        (self.sample, self.ram) = (Some(sample), ram);
        self.arrange();
        if let Mode::Confirm(confirmation) = &self.mode
            && self.process(confirmation.id).is_none_or(|process| process.state == 'Z')
        {
            self.gone();
        }
    }

    /// The process that is asked about is no more.
    pub(crate) fn gone(&mut self) {
        let Mode::Confirm(confirmation) = &mut self.mode else { return };
        match confirmation.stage {
            Stage::Open => {
                confirmation.stage = Stage::TooLate;
                confirmation.answer =
                    Some(format!("{} has ended meanwhile; nothing was sent", confirmation.id.0));
            }
            Stage::Sent => {
                self.message = Some(format!("{} has ended", confirmation.id.0));
                self.mode = Mode::Table;
            }
            Stage::TooLate => {}
        }
    }

    /// Chooses and orders the rows anew; the chosen process stays chosen, wherever it is now.
    fn arrange(&mut self) {
        let Some(sample) = &self.sample else { return };
        self.rows = rows(sample, &self.ram, &self.rates, &self.choice, self.glyphs);
        if let Some((id, at)) = self.selected {
            let now = self.rows.iter().position(|row| row.id == id);
            self.selected = match now {
                Some(at) => Some((id, at)),
                // It is gone: the selection keeps its place, whichever process is there now.
                None => self.rows.get(at.min(self.rows.len().saturating_sub(1))).map(|row| (row.id, at)),
            };
            self.clamp();
        }
    }

    fn clamp(&mut self) {
        if let Some((id, at)) = &mut self.selected {
            *at = (*at).min(self.rows.len().saturating_sub(1));
            if let Some(row) = self.rows.get(*at) {
                *id = row.id;
            }
        }
    }

    /// The place of the chosen row.
    pub(crate) fn selected(&self) -> Option<usize> {
        self.selected.map(|(_, at)| at).filter(|at| *at < self.rows.len())
    }

    pub(crate) fn chosen(&self) -> Option<&Row> {
        self.rows.get(self.selected()?)
    }

    /// What the recording of a process's RAM says.
    pub(crate) fn held(&self, process: Id) -> Option<&Held> {
        self.ram.get(&process)
    }

    pub(crate) fn process(&self, wanted: Id) -> Option<&Process> {
        let processes = &self.sample.as_ref()?.processes;
        processes.iter().find(|process| id(process) == wanted)
    }

    /// Brings the chosen row into sight; called when it is known how many rows fit.
    pub(crate) fn scroll(&mut self, page: usize) {
        self.page = page.max(1);
        let last = self.rows.len().saturating_sub(self.page);
        if let Some(at) = self.selected() {
            self.first = self.first.clamp((at + 1).saturating_sub(self.page), at);
        }
        self.first = self.first.min(last);
    }

    /// Does what a key means.
    pub(crate) fn press(&mut self, key: Key) -> Effect {
        if key == Key::Interrupt {
            return Effect::Quit;
        }
        if key == Key::Suspend {
            return Effect::Suspend;
        }
        self.message = None;
        match self.mode.clone() {
            Mode::Table => self.press_table(key),
            Mode::Help(first) => self.press_help(key, first),
            Mode::Filter => self.press_filter(key),
            Mode::Sort(at) => self.press_sort(key, at),
            Mode::Confirm(confirmation) => self.press_confirm(key, confirmation),
        }
    }

    fn press_table(&mut self, key: Key) -> Effect {
        match key {
            Key::Character('q') => return Effect::Quit,
            Key::Escape => return self.escape(),
            Key::Character('?' | 'h') | Key::Function(1) => self.mode = Mode::Help(0),
            Key::Down | Key::Character('j') => self.step(1),
            Key::Up | Key::Character('k') => self.step(-1),
            Key::PageDown => self.step(self.page as isize),
            Key::PageUp => self.step(-(self.page as isize)),
            Key::Home => self.step(isize::MIN),
            Key::End | Key::Character('G') => self.step(isize::MAX),
            Key::Enter => self.details(),
            Key::Character(']') => self.details_first = self.details_first.saturating_add(1),
            Key::Character('[') => self.details_first = self.details_first.saturating_sub(1),
            Key::Character('s') | Key::Function(6) => self.mode = Mode::Sort(self.choice.sort.at()),
            Key::Character('>' | '.') => self.sort_by(self.choice.sort.next()),
            Key::Character('<' | ',') => self.sort_by(self.choice.sort.previous()),
            Key::Character('r') => self.change(|choice| choice.reverse = !choice.reverse),
            Key::Character('t') | Key::Function(5) => self.change(|choice| choice.tree = !choice.tree),
            Key::Character('g') => self.change(|choice| choice.on_gpus = !choice.on_gpus),
            Key::Character('/') | Key::Function(4) => self.mode = Mode::Filter,
            Key::Character('K') | Key::Delete | Key::Function(9) => return self.aim(),
            Key::Character(' ') => {
                self.is_paused = !self.is_paused;
                return Effect::Pause(self.is_paused);
            }
            Key::Character('+' | '=') => return self.sample_every(self.interval.longer()),
            Key::Character('-') => return self.sample_every(self.interval.shorter()),
            _ => {}
        }
        Effect::None
    }

    /// Closes what is open, one thing a time; nothing is: the end.
    fn escape(&mut self) -> Effect {
        if self.has_details {
            self.has_details = false;
        } else if !self.choice.filter.is_empty() {
            self.change(|choice| choice.filter.clear());
        } else if self.selected.is_some() {
            self.selected = None;
        } else {
            return Effect::Quit;
        }
        Effect::None
    }

    fn details(&mut self) {
        if self.selected.is_none() {
            self.step(1);
        }
        self.has_details = !self.has_details;
        self.details_first = 0;
    }

    fn sample_every(&mut self, interval: Interval) -> Effect {
        self.interval = interval;
        Effect::Interval(interval)
    }

    fn change(&mut self, how: impl FnOnce(&mut Choice)) {
        how(&mut self.choice);
        self.arrange();
    }

    fn sort_by(&mut self, sort: Sort) {
        self.change(|choice| {
            choice.sort = sort;
            choice.reverse = false;
        });
    }

    fn step(&mut self, by: isize) {
        if self.rows.is_empty() {
            return;
        }
        let last = self.rows.len() - 1;
        let at = match self.selected() {
            Some(at) => at.saturating_add_signed(by).min(last),
            None if by == isize::MAX => last,
            None => 0,
        };
        self.selected = Some((self.rows[at].id, at));
        self.details_first = 0;
    }

    /// Moves the list of keys, where it is longer than the terminal; any other key closes it.
    fn press_help(&mut self, key: Key, first: usize) -> Effect {
        self.mode = match key {
            Key::Down | Key::Character('j') => Mode::Help(first.saturating_add(1)),
            Key::Up | Key::Character('k') => Mode::Help(first.saturating_sub(1)),
            Key::Home | Key::PageUp => Mode::Help(0),
            // As far as there is something: that is known when it is drawn.
            Key::End | Key::PageDown => Mode::Help(usize::MAX),
            _ => Mode::Table,
        };
        Effect::None
    }

    fn press_filter(&mut self, key: Key) -> Effect {
        // As much as a line has.
        const LONGEST: usize = 200;
        match key {
            Key::Enter => self.mode = Mode::Table,
            Key::Escape => {
                self.mode = Mode::Table;
                self.change(|choice| choice.filter.clear());
            }
            Key::Backspace => self.change(|choice| {
                choice.filter.pop();
            }),
            Key::Character(c) if !c.is_control() && self.choice.filter.chars().count() < LONGEST => {
                self.change(|choice| choice.filter.push(c));
            }
            Key::Down => self.step(1),
            Key::Up => self.step(-1),
            _ => {}
        }
        Effect::None
    }

    fn press_sort(&mut self, key: Key, at: usize) -> Effect {
        let last = Sort::ALL.len() - 1;
        match key {
            Key::Down | Key::Character('j') => self.mode = Mode::Sort((at + 1).min(last)),
            Key::Up | Key::Character('k') => self.mode = Mode::Sort(at.saturating_sub(1)),
            Key::Home | Key::PageUp => self.mode = Mode::Sort(0),
            Key::End | Key::PageDown => self.mode = Mode::Sort(last),
            Key::Enter => {
                self.mode = Mode::Table;
                self.sort_by(Sort::ALL[at.min(last)]);
            }
            Key::Escape | Key::Character('q' | 's') => self.mode = Mode::Table,
            _ => {}
        }
        Effect::None
    }

    fn aim(&mut self) -> Effect {
        let Some(row) = self.chosen() else {
            self.message = Some("choose a process first, with the arrows".to_owned());
            return Effect::None;
        };
        if row.at.is_none() {
            self.message = Some(format!("{} cannot be seen from here, and no signal reaches it", row.pid));
            return Effect::None;
        }
        Effect::Aim(row.id)
    }

    /// The process is held, so that the signal can reach no other: asks.
    pub(crate) fn ask(&mut self, wanted: Id, named: &Named) {
        let Some((process, sample)) = self.process(wanted).zip(self.sample.as_ref()) else {
            self.message = Some(format!("{} has ended", wanted.0));
            return;
        };
        let clean = |text: &str| self.glyphs.clean(text);
        let mut holds = vec![format!("{} in RAM", bytes(process.resident))];
        for (card, amount) in &process.on_gpus {
            let amount = amount.map_or_else(|| "memory".to_owned(), bytes);
            holds.push(format!("{amount} on GPU {card}"));
        }
        let steps = process.inside.as_ref().map(|inside| format!("; {} steps done", inside.steps));
        let words = vec![
            format!(
                "End {} ({}), of {}, for {}?",
                process.pid,
                clean(&named.name),
                clean(&process.user),
                lasting(sample.time.saturating_sub(process.started))
            ),
            clean(&named.command),
            format!("It holds {}{}", holds.join(", "), steps.unwrap_or_default()),
        ];
        self.mode = Mode::Confirm(Confirmation { id: wanted, words, stage: Stage::Open, answer: None });
    }

    /// What came of aiming at a process that cannot be held, or of a signal.
    pub(crate) fn answer(&mut self, way: Option<confirm::Way>, outcome: Result<(), String>) {
        match (&mut self.mode, outcome) {
            (Mode::Confirm(confirmation), Ok(())) => {
                confirmation.stage = Stage::Sent;
                confirmation.answer = way.map(|way| way.sent().to_owned());
            }
            (Mode::Confirm(confirmation), Err(why)) => confirmation.answer = Some(why),
            (_, Err(why)) => self.message = Some(why),
            (_, Ok(())) => {}
        }
    }

    fn press_confirm(&mut self, key: Key, confirmation: Confirmation) -> Effect {
        match key {
            Key::Character('y' | 'Y') if confirmation.stage == Stage::Open => Effect::Send(confirm::Way::Ask),
            Key::Character('f' | 'F') if confirmation.stage == Stage::Sent => {
                Effect::Send(confirm::Way::Force)
            }
            Key::Escape | Key::Enter | Key::Character('n' | 'N' | 'q') => {
                self.mode = Mode::Table;
                Effect::Release
            }
            _ => Effect::None,
        }
    }
}
