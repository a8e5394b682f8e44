//! From the one value that is left to a recording; and what to do with a file that was cut off.

use super::machine::{Assembler, DictState, ListState, RawSegment, Rows, Skipped};
use super::typed::{EVENT, identifies_dict};
use super::value::{Value, View, known};
use crate::intern::StringId;
use crate::read::ReadError;
use crate::recording::{
    Annotation, Device, Events, Format, MOST_DEVICES, Recording, Repeated, SettingValue, Settings, Source,
    Stage, Warning,
};
use std::collections::BTreeMap;

/// PyTorch has about forty settings, and one that is a table, of sixteen rows.
const MOST_SETTINGS: usize = 1024;
const MOST_OF_A_SETTING: usize = 64;

impl Assembler {
    /// Closes whatever a truncated file left open, so that what was read is not lost.
    pub(crate) fn close_what_is_open(&mut self) {
        while let Some(mark) = self.pop_mark() {
            let mark = mark.min(self.stack.len());
            match mark.checked_sub(1).map(|i| self.stack[i].view()) {
                Some(View::List(_)) => {
                    self.append_items(mark);
                }
                Some(View::Dict(_)) if self.is_one_thing(mark) => {
                    self.stack.truncate(mark - 1); // an event, frame, block or segment is whole or not there
                }
                Some(View::Dict(_)) => {
                    self.fold_unfinished(mark, true);
                    if !(self.stack.len() - mark).is_multiple_of(2) {
                        self.stack.pop();
                    }
                    self.set_items(mark);
                }
                _ => self.stack.truncate(mark),
            }
        }
        self.fold_unfinished(0, false);
        self.stack.truncate(1);
    }

    /// Whether the unfinished dictionary `start..` is an event, a frame, a block or a segment.
    fn is_one_thing(&self, start: usize) -> bool {
        let keys = || self.stack[start..].iter().step_by(2).map(|value| value.key());
        keys().any(identifies_dict) || keys().any(|key| matches!(key, Some(known::TOTAL_SIZE | known::NAME)))
    }

    /// A list of one element is written as list, element, APPEND: if the file ends before the APPEND, the
    /// element lies above its list, and so on down. Puts what is on top where it was going.
    fn fold_unfinished(&mut self, start: usize, pairs: bool) {
        while self.stack.len() >= start + 2 {
            let top = self.stack.len() - 1;
            // Keys and values take turns: a text in a key's place is a key, anything in a value's place is one.
            if pairs && ((top - start) % 2 == 1 || self.stack[top].key().is_some()) {
                return;
            }
            let View::List(list) = self.stack[top - 1].view() else { return };
            // Only a list that is still empty can be waiting for its one element.
            if !matches!(self.lists.get(list as usize), Some(ListState::Empty)) {
                return;
            }
            self.extend_list(list as usize, top, top + 1);
            self.stack.pop();
        }
    }

    /// The recording, from the one value that is left on the stack.
    pub(crate) fn finish(mut self, format: Format, truncated: bool) -> Result<Recording, ReadError> {
        self.check()?;
        let root = self.stack.first().copied().ok_or(ReadError::NotASnapshot)?;
        let top = match root.view() {
            View::Dict(dict) => match self.dicts.get(dict as usize) {
                Some(DictState::Pairs(index)) => std::mem::take(&mut self.pairs[*index as usize]),
                _ => return Err(ReadError::NotASnapshot),
            },
            // `torch.cuda.memory_snapshot()` gives the segments alone.
            View::List(_) => vec![(Value::text(known::SEGMENTS), root)],
            _ => return Err(ReadError::NotASnapshot),
        };
        let mut top_level = TopLevel::default();
        let mut known_keys = 0;
        for &(key, value) in &top {
            let Some(key) = key.key() else { continue };
            known_keys += 1;
            match key {
                known::SEGMENTS => top_level.segments = Some(self.take_rows(value, Rows::Segments)),
                known::DEVICE_TRACES => top_level.traces = self.take_traces(value),
                known::ALLOCATOR_SETTINGS => self.read_settings(value, &mut top_level),
                known::EXTERNAL_ANNOTATIONS => top_level.annotations = self.read_annotations(value),
                known::TRACE_ALLOC_OVERFLOWED => top_level.overflowed = self.plain_items(value),
                known::TRACE_ALLOC_MAX_ENTRIES => top_level.max_entries = self.plain_items(value),
                known::HOST_SEGMENTS | known::HOST_TRACES => top_level.has_host |= self.is_filled(value),
                _ => known_keys -= 1,
            }
            self.check()?;
        }
        let recognised = top_level.segments.is_some() || !top_level.traces.is_empty();
        if !recognised && (known_keys == 0 || !truncated) {
            return Err(ReadError::NotASnapshot);
        }
        if matches!(root.view(), View::List(_))
            && top_level.segments.as_ref().is_none_or(|rows| rows.is_empty())
            && !self.list_is_empty(root)
        {
            return Err(ReadError::NotASnapshot);
        }
        self.into_recording(top_level, format, truncated)
    }

    fn is_empty_dict(&self, value: Value) -> bool {
        match value.view() {
            View::Dict(dict) => matches!(self.dicts.get(dict as usize), Some(DictState::Empty)),
            _ => false,
        }
    }

    fn list_is_empty(&self, value: Value) -> bool {
        match value.view() {
            View::List(list) => matches!(self.lists.get(list as usize), Some(ListState::Empty)),
            _ => false,
        }
    }

    /// Rows that a list names, in its order, each list once and each row once.
    fn take_rows(&mut self, value: Value, kind: Rows) -> Vec<u32> {
        let View::List(list) = value.view() else { return Vec::new() };
        let list = list as usize;
        match self.lists.get(list).copied() {
            Some(ListState::Rows(found, first, end)) if found == kind => {
                self.lists[list] = ListState::Empty;
                (first..end).collect()
            }
            Some(ListState::Items(index)) => {
                self.lists[list] = ListState::Empty;
                let items = std::mem::take(&mut self.items[index as usize]);
                let mut seen = hashbrown::HashSet::new();
                let mut rows = Vec::new();
                for item in items {
                    match self.row(item) {
                        Some((found, row)) if found == kind => {
                            if seen.insert(row) {
                                rows.push(row);
                            } else {
                                self.skipped.shared += 1;
                            }
                        }
                        _ if self.is_empty_dict(item) => {} // where a file was cut off
                        _ if kind == Rows::Events => self.skipped.events += 1,
                        _ => self.skipped.segments += 1,
                    }
                }
                rows
            }
            _ => Vec::new(),
        }
    }

    /// The events of each device. Almost always one range of rows; kept as ranges so that nothing is
    /// copied then.
    fn take_traces(&mut self, value: Value) -> Vec<(u32, Trace)> {
        let View::List(list) = value.view() else { return Vec::new() };
        let Some(ListState::Items(index)) = self.lists.get(list as usize).copied() else { return Vec::new() };
        let items = std::mem::take(&mut self.items[index as usize]);
        let mut traces = Vec::new();
        for (ordinal, item) in items.into_iter().enumerate() {
            let View::List(list) = item.view() else { continue };
            let trace = match self.lists.get(list as usize).copied() {
                Some(ListState::Rows(Rows::Events, first, end)) => {
                    self.lists[list as usize] = ListState::Empty;
                    Trace::Range(first, end)
                }
                Some(ListState::Items(_)) => Trace::Rows(self.take_rows(item, Rows::Events)),
                _ => continue,
            };
            traces.push((ordinal as u32, trace));
        }
        traces
    }

    fn is_filled(&mut self, value: Value) -> bool {
        match value.view() {
            View::List(list) => match self.lists.get(list as usize).copied() {
                Some(ListState::Items(index)) => {
                    let index = index as usize;
                    self.work(self.items[index].len(), "lists that are named again and again")
                        && (self.items[index].iter())
                            .any(|item| !matches!(item.view(), View::List(_)) || !self.list_is_empty(*item))
                }
                Some(ListState::Empty) | None => false,
                Some(_) => true,
            },
            _ => false,
        }
    }

    fn plain_items(&self, value: Value) -> Vec<i64> {
        match value.view() {
            View::List(list) => match self.lists.get(list as usize) {
                Some(ListState::Items(index)) => {
                    self.items[*index as usize].iter().take(4096).map(|&v| self.signed(v)).collect()
                }
                _ => Vec::new(),
            },
            View::Int(_) | View::Bool(_) => vec![self.signed(value)],
            _ => Vec::new(),
        }
    }

    fn pairs_of(&self, value: Value) -> &[(Value, Value)] {
        match value.view() {
            View::Dict(dict) => match self.dicts.get(dict as usize) {
                Some(DictState::Pairs(index)) => &self.pairs[*index as usize],
                _ => &[],
            },
            _ => &[],
        }
    }

    fn read_settings(&mut self, value: Value, top: &mut TopLevel) {
        let pairs: Vec<(Value, Value)> = self.pairs_of(value).iter().take(MOST_SETTINGS).copied().collect();
        // A key that stands in a dictionary twice has its last value.
        top.settings = Settings { known: !pairs.is_empty(), ..Settings::default() };
        for (key, value) in pairs {
            let Some(key) = key.key() else { continue };
            if !self.charge(self.size_of_setting(key, value), "settings") {
                return;
            }
            match key {
                known::TRACE_ALLOC_OVERFLOWED => top.overflowed = self.plain_items(value),
                known::TRACE_ALLOC_MAX_ENTRIES => top.max_entries = self.plain_items(value),
                _ => {}
            }
            let setting = match value.view() {
                View::Bool(value) => SettingValue::Bool(value),
                View::Int(value) => SettingValue::Int(value),
                View::Wide(index) => SettingValue::Int(self.wide[index as usize] as i64),
                View::Float(index) => SettingValue::Float(self.floats[index as usize]),
                View::Text(id) => SettingValue::Text(self.strings.get(id).to_owned()),
                View::Dict(_) => SettingValue::Table(
                    (self.pairs_of(value).iter().take(MOST_OF_A_SETTING))
                        .filter_map(|&(k, v)| Some((self.strings.get(k.key()?).to_owned(), self.signed(v))))
                        .collect(),
                ),
                _ => continue,
            };
            top.settings.set(self.strings.get(key), setting);
        }
    }

    /// What a setting takes: texts that a file names again and again are copied each time.
    fn size_of_setting(&self, key: StringId, value: Value) -> usize {
        let text = |id: StringId| self.strings.get(id).len() + 64;
        text(key)
            + match value.view() {
                // The configuration is kept twice.
                View::Text(id) => 2 * text(id),
                View::Dict(_) => (self.pairs_of(value).iter().take(MOST_OF_A_SETTING))
                    .map(|(key, _)| key.key().map_or(0, text))
                    .sum(),
                _ => 0,
            }
    }

    fn read_annotations(&mut self, value: Value) -> Vec<Annotation> {
        let View::List(list) = value.view() else { return Vec::new() };
        let Some(&ListState::Items(index)) = self.lists.get(list as usize) else { return Vec::new() };
        let index = index as usize;
        let what = "annotations";
        for place in 0..self.items[index].len() {
            let steps = self.pairs_of(self.items[index][place]).len() + 1;
            if !self.work(steps, what) {
                return Vec::new();
            }
        }
        if !self.charge(32 * self.items[index].len(), what) {
            return Vec::new();
        }
        (self.items[index].iter())
            .filter_map(|&item| {
                let mut annotation = Annotation { device: 0, time: 0, name: 0, stage: Stage::Mark };
                for &(key, value) in self.pairs_of(item) {
                    match key.key() {
                        Some(known::NAME) => annotation.name = value.key()?,
                        Some(known::STAGE) => {
                            annotation.stage = match value.key() {
                                Some(known::START) => Stage::Start,
                                Some(known::END) => Stage::End,
                                _ => Stage::Mark,
                            }
                        }
                        Some(known::DEVICE) => annotation.device = self.signed(value).try_into().ok()?,
                        Some(known::TIME_US) => annotation.time = self.signed(value),
                        _ => {}
                    }
                }
                Some(annotation)
            })
            .collect()
    }

    fn into_recording(
        mut self,
        top: TopLevel,
        format: Format,
        truncated: bool,
    ) -> Result<Recording, ReadError> {
        let has_final_state = top.segments.is_some();
        let mut devices: BTreeMap<u32, Device> = BTreeMap::new();
        for (ordinal, trace) in top.traces {
            if devices.len() == MOST_DEVICES {
                self.skipped.devices += 1;
                continue;
            }
            let rows = match &trace {
                // All of them: the columns are moved.
                Trace::Range(0, end) if *end as usize == self.events.len() => 0,
                Trace::Range(first, end) => (end - first) as usize,
                Trace::Rows(rows) => rows.len(),
            };
            self.charge(EVENT * rows, "events");
            self.check()?;
            let events = match trace {
                Trace::Range(first, end) => self.events.take_range(first as usize, end as usize),
                Trace::Rows(rows) => self.events.pick(&rows),
            };
            devices.entry(ordinal).or_default().events = events;
        }
        for row in top.segments.unwrap_or_default() {
            let RawSegment { device, segment } = &mut self.segments[row as usize];
            let Ok(ordinal) = u32::try_from(*device) else {
                self.skipped.segments += 1;
                continue;
            };
            if devices.len() == MOST_DEVICES && !devices.contains_key(&ordinal) {
                self.skipped.segments += 1;
                continue;
            }
            let mut segment = std::mem::take(segment);
            let device = devices.entry(ordinal).or_default();
            let start = device.blocks.len();
            device.blocks.extend_from_slice(&self.blocks[segment.blocks.clone()]);
            segment.blocks = start..device.blocks.len();
            device.segments.push(segment);
        }
        self.charge(self.streams.len() * devices.len() * size_of::<i64>(), "streams");
        self.check()?;
        for (ordinal, device) in &mut devices {
            device.ordinal = *ordinal;
            device.has_final_state = has_final_state;
            device.streams.clone_from(&self.streams);
            // Written for every device, or once for all.
            let pick = |list: &[i64]| list.get(*ordinal as usize).or_else(|| list.first()).copied();
            device.max_entries = pick(&top.max_entries).and_then(|n| u64::try_from(n).ok());
            device.overflowed = pick(&top.overflowed).map(|flag| flag != 0);
        }
        let mut recording = Recording {
            host: None,
            source: Source { format, truncated },
            strings: self.strings,
            stacks: self.stacks,
            settings: top.settings,
            annotations: top.annotations,
            devices: devices.into_values().collect(),
            repeated: Repeated::default(),
            censuses: Vec::new(),
            warnings: Vec::new(),
        };
        recording.warn_skipped(&self.skipped, top.has_host);
        Ok(recording)
    }
}

/// The keys of the outermost dictionary, as found.
#[derive(Default)]
struct TopLevel {
    segments: Option<Vec<u32>>,
    traces: Vec<(u32, Trace)>,
    settings: Settings,
    annotations: Vec<Annotation>,
    overflowed: Vec<i64>,
    max_entries: Vec<i64>,
    has_host: bool,
}

enum Trace {
    Range(u32, u32),
    Rows(Vec<u32>),
}

impl Recording {
    fn warn_skipped(&mut self, skipped: &Skipped, has_host: bool) {
        let mut warn = |count: u64, code, what: &str| {
            if count > 0 {
                self.warnings.push(Warning { code, message: format!("passed over {count} {what}") });
            }
        };
        warn(skipped.events, "bad-events", "of the events: their size cannot be, or is missing");
        warn(skipped.segments, "bad-segments", "of the segments: they make no sense");
        warn(skipped.blocks, "bad-blocks", "of the blocks: they lie outside their segment, or make no sense");
        warn(skipped.devices, "too-many-devices", "of the devices: more than any machine has");
        warn(skipped.shared, "shared-rows", "rows that stand in the file more than once");
        if has_host {
            self.warnings.push(Warning {
                code: "host-memory",
                message: "the file also has pinned host memory, which is not read yet".to_owned(),
            });
        }
    }
}

impl Settings {
    /// Takes one setting by the name that PyTorch gives it.
    pub(crate) fn set(&mut self, name: &str, value: SettingValue) {
        match (name, &value) {
            ("PYTORCH_CUDA_ALLOC_CONF", SettingValue::Text(text)) => self.conf.clone_from(text),
            ("max_split_size", SettingValue::Int(bytes)) => self.max_split_size = u64::try_from(*bytes).ok(),
            ("garbage_collection_threshold", SettingValue::Float(share)) => {
                self.garbage_collection_threshold = *share;
            }
            ("expandable_segments", SettingValue::Bool(on)) => self.expandable_segments = *on,
            ("roundup_power2_divisions", SettingValue::Table(table)) => {
                for (interval, divisions) in table {
                    let Some(mib) = interval.parse::<u64>().ok().filter(|m| m.is_power_of_two()) else {
                        continue;
                    };
                    if let Some(slot) = self.roundup_power2_divisions.get_mut(mib.ilog2() as usize) {
                        *slot = u32::try_from(*divisions).unwrap_or(0);
                    }
                }
            }
            _ => {}
        }
        self.all.push((name.to_owned(), value));
    }
}

impl Events {
    /// Takes rows out. The usual case, all of them, moves the columns.
    fn take_range(&mut self, first: usize, end: usize) -> Self {
        if first == 0 && end == self.len() {
            return std::mem::take(self);
        }
        let rows: Vec<u32> = (first as u32..(end.min(self.len())) as u32).collect();
        self.pick(&rows)
    }

    fn pick(&self, rows: &[u32]) -> Self {
        fn column<T: Copy>(from: &[T], rows: &[u32]) -> Vec<T> {
            rows.iter().filter_map(|&row| from.get(row as usize).copied()).collect()
        }
        fn sparse<T: Copy>(from: &[(u32, T)], rows: &[u32]) -> Vec<(u32, T)> {
            (rows.iter().enumerate())
                .filter_map(|(new, row)| {
                    let at = from.binary_search_by_key(row, |&(r, _)| r).ok()?;
                    Some((new as u32, from[at].1))
                })
                .collect()
        }
        Self {
            action: column(&self.action, rows),
            address: column(&self.address, rows),
            size: column(&self.size, rows),
            stream: column(&self.stream, rows),
            stack: column(&self.stack, rows),
            time: column(&self.time, rows),
            pool: sparse(&self.pool, rows),
            compile_context: sparse(&self.compile_context, rows),
            metadata: sparse(&self.metadata, rows),
            category: sparse(&self.category, rows),
            forward: sparse(&self.forward, rows),
        }
    }
}
