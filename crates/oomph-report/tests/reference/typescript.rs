//! The types of what the page's script reads, in its language.

use crate::shapes::{Field, Kind, Shape, Shapes};

const HEAD: &str = "\
// What is in the page, as its writer has it: made from crates/oomph-report/src/page/data.rs by `make reference`.
// Change that, not this.
";

/// The types that are named, and all that these mention.
pub(crate) fn types(shapes: &Shapes, names: &[&str]) -> String {
    let mut wanted: Vec<usize> = names.iter().map(|name| shapes.find(name)).collect();
    let mut out = HEAD.to_owned();
    let mut next = 0;
    while let Some(&index) = wanted.get(next) {
        next += 1;
        let named = shapes.get(index);
        let doc = if named.doc.is_empty() { String::new() } else { format!("/** {} */\n", named.doc) };
        out.push_str(&format!("\n{doc}"));
        match named.kind {
            Kind::Object(fields) => {
                out.push_str(&format!("export interface {} {{\n", named.name));
                properties(&mut out, shapes, &fields, &mut wanted);
                out.push_str("}\n");
            }
            Kind::Words(variants) => {
                let words: Vec<String> = variants.iter().map(|one| format!("\"{}\"", one.key)).collect();
                out.push_str(&format!("export type {} = {};\n", named.name, words.join(" | ")));
            }
            Kind::Tagged { .. } => panic!("{}: nothing of the page is such", named.name),
        }
    }
    out
}

fn properties(out: &mut String, shapes: &Shapes, fields: &[Field], wanted: &mut Vec<usize>) {
    for field in fields {
        if let (true, Shape::Named(index)) = (field.is_flat, &field.shape) {
            let Kind::Object(inner) = shapes.get(*index).kind else {
                panic!("{}: nothing to flatten", field.key)
            };
            properties(out, shapes, &inner, wanted);
            continue;
        }
        if !field.doc.is_empty() {
            out.push_str(&format!("  /** {} */\n", field.doc));
        }
        let (mark, shape) = match (&field.shape, field.is_left_out) {
            (Shape::Optional(inner), true) => ("?", &**inner),
            (shape, _) => ("", shape),
        };
        out.push_str(&format!("  {}{mark}: {};\n", field.key, words(shape, shapes, wanted)));
    }
}

fn words(shape: &Shape, shapes: &Shapes, wanted: &mut Vec<usize>) -> String {
    match shape {
        Shape::Integer | Shape::Number => "number".to_owned(),
        Shape::Text => "string".to_owned(),
        Shape::Boolean => "boolean".to_owned(),
        Shape::Anything => "unknown".to_owned(),
        Shape::List(inner) => format!("{}[]", words(inner, shapes, wanted)),
        Shape::Tuple(all) => {
            let all: Vec<String> = all.iter().map(|one| words(one, shapes, wanted)).collect();
            format!("[{}]", all.join(", "))
        }
        Shape::Map(inner) => format!("Record<string, {}>", words(inner, shapes, wanted)),
        Shape::Optional(inner) => format!("{} | null", words(inner, shapes, wanted)),
        Shape::Named(index) => {
            if !wanted.contains(index) {
                wanted.push(*index);
            }
            shapes.get(*index).name
        }
    }
}
