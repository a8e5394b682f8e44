//! Whether a real document is what its type was understood to be: every key is known, none is missing, each value is of its kind.

use crate::shapes::{Field, Kind, Shape, Shapes};
use serde_json::{Map, Value};

/// What is wrong with a document, each with where it is.
pub(crate) fn document(text: &str, shapes: &Shapes, name: &str) -> Vec<String> {
    let Value::Object(mut document) = serde_json::from_str(text).unwrap() else { panic!("not an object") };
    let version = document.shift_remove("schema_version");
    let mut wrong = Vec::new();
    if version.is_none() {
        wrong.push("schema_version: missing".to_owned());
    }
    value(&Value::Object(document), &Shape::Named(shapes.find(name)), shapes, "", &mut wrong);
    wrong
}

fn value(found: &Value, shape: &Shape, shapes: &Shapes, at: &str, wrong: &mut Vec<String>) {
    let is_so = match (shape, found) {
        (Shape::Optional(_), Value::Null) | (Shape::Anything, _) => true,
        (Shape::Optional(inner), found) => return value(found, inner, shapes, at, wrong),
        (Shape::Integer, found) => found.is_u64() || found.is_i64(),
        (Shape::Number, found) => found.is_number(),
        (Shape::Text, found) => found.is_string(),
        (Shape::Boolean, found) => found.is_boolean(),
        (Shape::List(inner), Value::Array(all)) => {
            return all.iter().for_each(|one| value(one, inner, shapes, &format!("{at}[]"), wrong));
        }
        (Shape::Tuple(kinds), Value::Array(all)) if kinds.len() == all.len() => {
            return kinds.iter().zip(all).for_each(|(kind, one)| value(one, kind, shapes, at, wrong));
        }
        (Shape::Map(inner), Value::Object(all)) => {
            return all.values().for_each(|one| value(one, inner, shapes, &format!("{at}.*"), wrong));
        }
        (Shape::Named(index), found) => return named(found, *index, shapes, at, wrong),
        _ => false,
    };
    if !is_so {
        wrong.push(format!("{at}: {found} is not {shape:?}"));
    }
}

fn named(found: &Value, index: usize, shapes: &Shapes, at: &str, wrong: &mut Vec<String>) {
    match (shapes.get(index).kind, found) {
        (Kind::Words(words), Value::String(word)) if words.iter().any(|one| one.key == *word) => {}
        (_, Value::Object(all)) => {
            let mut left = all.clone();
            object(&mut left, index, shapes, at, wrong);
            wrong.extend(left.keys().map(|key| format!("{at}.{key}: not described")));
        }
        _ => wrong.push(format!("{at}: {found} is not a {}", shapes.get(index).name)),
    }
}

/// Takes out of an object what a type says of it.
fn object(left: &mut Map<String, Value>, index: usize, shapes: &Shapes, at: &str, wrong: &mut Vec<String>) {
    match shapes.get(index).kind {
        Kind::Object(all) => fields(left, &all, shapes, at, wrong),
        Kind::Tagged { tag, content: None, variants } => {
            let key = left.shift_remove(&tag);
            match variants.iter().find(|one| key.as_ref().is_some_and(|key| *key == one.key)) {
                Some(variant) => fields(left, &variant.fields, shapes, at, wrong),
                None => wrong.push(format!("{at}.{tag}: {key:?}")),
            }
        }
        _ => wrong.push(format!("{at}: not looked into")),
    }
}

fn fields(left: &mut Map<String, Value>, all: &[Field], shapes: &Shapes, at: &str, wrong: &mut Vec<String>) {
    for field in all {
        if let (true, Shape::Named(index)) = (field.is_flat, &field.shape) {
            object(left, *index, shapes, at, wrong);
            continue;
        }
        let inside = format!("{at}.{}", field.key);
        match left.shift_remove(&field.key) {
            Some(found) => value(&found, &field.shape, shapes, &inside, wrong),
            None if field.is_left_out => {}
            None => wrong.push(format!("{inside}: missing")),
        }
    }
}
