//! Fills the tables of a page: what is between `<!-- fields of json::explain::Recording -->` and `<!-- end of fields -->`.
//!
//! A type that has a table of its own is linked to from others; the fields of any other stand below the field that has it, as
//! `gpu.name` or `lines[].file`.

use crate::shapes::{Field, Kind, Shape, Shapes, Variant};
use std::collections::HashMap;

const START: &str = "<!-- fields of ";
const END: &str = "<!-- end of fields -->";

/// The page with its tables made anew.
pub(crate) fn filled(page: &str, shapes: &Shapes) -> String {
    let tables = Tables { shapes, headings: headings(page, shapes) };
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        let Some(name) = marked(line) else { continue };
        out.push_str(&format!("\n{}\n{END}\n", tables.table(shapes.find(name))));
        assert!(lines.any(|line| line == END), "{line}: there is no end to it");
    }
    out
}

fn marked(line: &str) -> Option<&str> {
    line.strip_prefix(START)?.strip_suffix(" -->")
}

/// Under which heading each type has its table.
fn headings(page: &str, shapes: &Shapes) -> HashMap<usize, String> {
    let mut last = String::new();
    let mut all = HashMap::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ").or(line.strip_prefix("### ")) {
            last = heading.to_owned();
        } else if let Some(name) = marked(line) {
            all.insert(shapes.find(name), last.clone());
        }
    }
    all
}

struct Tables<'a> {
    shapes: &'a Shapes,
    headings: HashMap<usize, String>,
}

impl Tables<'_> {
    fn table(&self, index: usize) -> String {
        match self.shapes.get(index).kind {
            Kind::Object(fields) => {
                let mut rows = "| key | type | meaning |\n|---|---|---|\n".to_owned();
                self.rows(&mut rows, "", &fields);
                rows
            }
            Kind::Tagged { tag, content: None, variants } => {
                let mut rows = format!("| `{tag}` | meaning | more keys |\n|---|---|---|\n");
                for Variant { key, doc, fields } in variants {
                    let keys: Vec<String> = (fields.iter())
                        .map(|field| format!("`{}`: {}. {}", field.key, self.words(&field.shape), field.doc))
                        .collect();
                    rows.push_str(&format!("| `{key}` | {doc} | {} |\n", keys.join("<br>")));
                }
                rows
            }
            Kind::Words(_) | Kind::Tagged { .. } => panic!("{}: no table", self.shapes.get(index).name),
        }
    }

    fn rows(&self, out: &mut String, before: &str, fields: &[Field]) {
        for field in fields {
            let named = innermost(&field.shape);
            let heading = named.and_then(|index| self.headings.get(&index));
            if field.is_flat {
                match (heading, named.map(|index| self.shapes.get(index).kind)) {
                    (Some(heading), _) => {
                        let of = if before.is_empty() { String::new() } else { format!("`{before}` and ") };
                        let anchor = anchor(heading);
                        out.push_str(&format!(
                            "| {of}the keys of [{heading}](#{anchor}) | | {} |\n",
                            field.doc
                        ));
                    }
                    (None, Some(Kind::Object(inner))) => self.rows(out, before, &inner),
                    _ => panic!("{}: nothing to flatten", field.key),
                }
                continue;
            }
            let absent = if field.is_left_out { "; may be absent" } else { "" };
            let kind = match (&field.shape, field.is_left_out) {
                // What would be null is left out.
                (Shape::Optional(inner), true) => self.words(inner),
                (shape, _) => self.words(shape),
            };
            let key = format!("{before}{}", field.key);
            out.push_str(&format!("| `{key}` | {kind}{absent} | {} |\n", self.meaning(field)));
            if let (None, Some(index)) = (heading, named) {
                let list = if is_list(&field.shape) { "[]" } else { "" };
                self.nested(out, &format!("{key}{list}."), index);
            }
        }
    }

    fn nested(&self, out: &mut String, before: &str, index: usize) {
        match self.shapes.get(index).kind {
            Kind::Object(fields) => self.rows(out, before, &fields),
            Kind::Words(_) => {}
            Kind::Tagged { tag, content, variants } => {
                let said: Vec<String> =
                    variants.iter().map(|one| format!("`{}`: {}", one.key, one.doc)).collect();
                out.push_str(&format!("| `{before}{tag}` | string | {} |\n", said.join("<br>")));
                let with: Vec<&Variant> = variants.iter().filter(|one| !one.fields.is_empty()).collect();
                if let (Some(content), [one]) = (content, &with[..]) {
                    let kind = self.words(&one.fields[0].shape);
                    out.push_str(&format!(
                        "| `{before}{content}` | {kind}; may be absent | Of `{}`. |\n",
                        one.key
                    ));
                }
            }
        }
    }

    fn meaning(&self, field: &Field) -> String {
        let words = innermost(&field.shape).map(|index| self.shapes.get(index).kind);
        match words {
            Some(Kind::Words(variants)) => {
                let all: Vec<String> = variants.iter().map(|one| format!("`{}`", one.key)).collect();
                format!("{} One of {}.", field.doc, all.join(", "))
            }
            _ => field.doc.clone(),
        }
    }

    fn words(&self, shape: &Shape) -> String {
        match shape {
            Shape::Integer => "integer".to_owned(),
            Shape::Number => "number".to_owned(),
            Shape::Text => "string".to_owned(),
            Shape::Boolean => "boolean".to_owned(),
            Shape::Anything | Shape::Map(_) => "object".to_owned(),
            Shape::Tuple(all) => format!("list of {} {}s", all.len(), self.words(&all[0])),
            Shape::Optional(inner) => format!("{} or null", self.words(inner)),
            Shape::List(inner) => match &**inner {
                Shape::Named(index) => match self.headings.get(index) {
                    Some(heading) => format!("list of [{heading}](#{})", anchor(heading)),
                    None => match self.shapes.get(*index).kind {
                        Kind::Words(_) => "list of strings".to_owned(),
                        _ => "list of objects".to_owned(),
                    },
                },
                inner => format!("list of {}s", self.words(inner)),
            },
            Shape::Named(index) => match (self.headings.get(index), self.shapes.get(*index).kind) {
                (Some(heading), _) => format!("[{heading}](#{})", anchor(heading)),
                (None, Kind::Words(_)) => "string".to_owned(),
                (None, _) => "object".to_owned(),
            },
        }
    }
}

/// The type of ours that a value is, or is a list of.
fn innermost(shape: &Shape) -> Option<usize> {
    match shape {
        Shape::Named(index) => Some(*index),
        Shape::List(inner) | Shape::Optional(inner) => innermost(inner),
        _ => None,
    }
}

fn is_list(shape: &Shape) -> bool {
    match shape {
        Shape::List(_) => true,
        Shape::Optional(inner) => is_list(inner),
        _ => false,
    }
}

fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}
