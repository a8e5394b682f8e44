//! What all subjects put into columns in the same way: stacks, lines, names.
//!
//! Boundary: where a column is and what is in it; which columns a subject has is for others.

use super::columns::{Column, packed};
use super::data;
use crate::exports::last_parts;
use oomph_explain::{Annotated, DetailFrame, DetailLine, Origins, Place};
use oomph_trace::{CALLER, NATIVE};
use oomph_words::harmless;
use std::collections::HashMap;

/// How long a name may be.
const LONGEST: usize = 500;

/// The columns of a subject.
pub(super) struct Packer {
    prefix: String,
    columns: Vec<(String, String)>,
}

impl Packer {
    /// Of the subject with this place in the page.
    pub(super) fn of(number: usize) -> Self {
        Self { prefix: format!("c{number}-"), columns: Vec::new() }
    }

    /// What the page's `<script>`s hold, by id.
    pub(super) fn into_columns(self) -> Vec<(String, String)> {
        self.columns
    }

    /// Takes a column and says where it is.
    pub(super) fn put(&mut self, name: &str, column: &Column) -> data::Column {
        self.put_packed(name, column.rows(), column.packed())
    }

    /// The same of what is packed already.
    pub(super) fn put_packed(&mut self, name: &str, rows: usize, packed: String) -> data::Column {
        let id = format!("{}{name}", self.prefix);
        self.columns.push((id.clone(), packed));
        data::Column { id, rows }
    }
}

/// Stacks, annotations, and all names. `no_stack` is what a line without a stack is called.
pub(super) fn text(
    packer: &mut Packer,
    origins: &Origins,
    annotated: &[Annotated],
    no_stack: Option<&str>,
    source: &dyn Fn(&str, u32) -> Option<String>,
) -> data::TextColumns {
    let mut calls = Column::default();
    for call in &origins.calls {
        calls.unsigned(call.parent.map_or(0, |parent| u64::from(parent) + 1));
        calls.unsigned(u64::from(call.frame));
        calls.row();
    }
    let nodes = packer.put("nodes", &calls);
    let mut stacks = Column::default();
    for stack in &origins.stacks {
        stacks.unsigned(stack.call.map_or(0, |call| u64::from(call) + 1));
        stacks.unsigned(u64::from(stack.line));
        stacks.row();
    }
    let stacks = packer.put("stacks", &stacks);
    let mut strings = Names::default();
    let frames = (origins.frames.iter())
        .map(|frame| {
            let flags = u32::from(frame.own) | u32::from(frame.native) << 1;
            (strings.index(called(frame)), strings.index(&frame.file), frame.line, flags)
        })
        .collect();
    let lines = origins.lines.iter().map(|line| line_row(&mut strings, line, no_stack, source)).collect();
    let annotations = annotations(packer, &mut strings, annotated);
    let tables = data::Text { strings: strings.all, frames, lines };
    // It is made of numbers and texts: there is nothing in it that cannot be written.
    let tables = serde_json::to_string(&tables).unwrap_or_default();
    let text = packer.put_packed("text", 1, packed(tables.as_bytes()));
    data::TextColumns { nodes, stacks, annotations, text }
}

/// What a frame is called: where a library asked, its file's name; a function of C without what marks it as one.
fn called(frame: &DetailFrame) -> &str {
    match frame.function.strip_prefix(NATIVE) {
        Some(name) => name,
        None if frame.function == CALLER => last_parts(&frame.file, 1),
        None => &frame.function,
    }
}

/// As [`data::Text`] has it.
type LineRow = (i64, i64, u32, i64, u32, i64, i64);

fn line_row(
    strings: &mut Names,
    line: &DetailLine,
    no_stack: Option<&str>,
    source: &dyn Fn(&str, u32) -> Option<String>,
) -> LineRow {
    let label = match (&line.place, no_stack) {
        (Place::NoStack, Some(name)) => strings.index(name),
        (place, _) => strings.index(&place.short()),
    };
    let through = line.through.as_deref().map_or(-1, |through| strings.index(through));
    match &line.place {
        Place::Line { file, line, function, own } => {
            // Only the program's own lines are quoted.
            let text = own.then(|| source(file, *line)).flatten();
            let text = text.map_or(-1, |text| strings.index(text.trim()));
            let flags = u32::from(*own) | 2;
            (label, strings.index(file), *line, strings.index(function), flags, through, text)
        }
        _ => (label, -1, 0, -1, 0, through, -1),
    }
}

/// Strings of a recording, each once; a stranger's text without what moves cursors, and not endless.
#[derive(Default)]
struct Names {
    seen: HashMap<String, i64>,
    all: Vec<String>,
}

impl Names {
    fn index(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.seen.get(text) {
            return index;
        }
        let index = self.all.len() as i64;
        self.all.push(harmless(text).chars().take(LONGEST).collect());
        self.seen.insert(text.to_owned(), index);
        index
    }
}

fn annotations(packer: &mut Packer, strings: &mut Names, annotated: &[Annotated]) -> data::Column {
    let (mut column, mut before) = (Column::default(), 0);
    for one in annotated {
        column.unsigned(strings.index(&one.name) as u64);
        column.difference(u64::from(one.from), before);
        column.unsigned(one.to.map_or(0, |to| u64::from(to.saturating_sub(one.from)) + 1));
        column.row();
        before = u64::from(one.from);
    }
    packer.put("annotations", &column)
}
