//! The JSON Schema of what a verb prints: for those who check it, and for models that are told what a tool answers with.

use crate::shapes::{Field, Kind, Shape, Shapes, Variant};
use serde_json::{Map, Value, json};

/// The schema of a document that is of one of these types. More keys may come at any time, so none is forbidden.
pub(crate) fn document(shapes: &Shapes, names: &[&str]) -> String {
    let mut schema = Schema { shapes, wanted: names.iter().map(|name| shapes.find(name)).collect() };
    let mut all = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": { "schema_version": { "const": oomph_report::json::SCHEMA_VERSION } },
        "required": ["schema_version"],
    });
    let kinds: Vec<Value> = schema.wanted.clone().into_iter().map(|index| schema.link(index)).collect();
    let (key, kinds) = if kinds.len() == 1 { ("allOf", kinds) } else { ("anyOf", kinds) };
    all[key] = kinds.into();
    let mut definitions = Map::new();
    let mut next = 0;
    while let Some(&index) = schema.wanted.get(next) {
        next += 1;
        definitions.insert(shapes.label(index), schema.definition(index));
    }
    all["$defs"] = definitions.into();
    format!("{all:#}\n")
}

struct Schema<'a> {
    shapes: &'a Shapes,
    /// Types that are mentioned, each once.
    wanted: Vec<usize>,
}

impl Schema<'_> {
    fn link(&mut self, index: usize) -> Value {
        if !self.wanted.contains(&index) {
            self.wanted.push(index);
        }
        json!({ "$ref": format!("#/$defs/{}", self.shapes.label(index)) })
    }

    fn definition(&mut self, index: usize) -> Value {
        let named = self.shapes.get(index);
        match named.kind {
            Kind::Object(fields) => self.object(&fields, Map::new()),
            Kind::Words(words) => json!({ "enum": words.iter().map(|one| &one.key).collect::<Vec<_>>() }),
            Kind::Tagged { tag, content: None, variants } => {
                let kinds: Vec<Value> = (variants.iter())
                    .map(|Variant { key, doc, fields }| {
                        let word = described(json!({ "const": key }), doc);
                        self.object(fields, Map::from_iter([(tag.clone(), word)]))
                    })
                    .collect();
                json!({ "oneOf": kinds })
            }
            Kind::Tagged { .. } => panic!("{}: no document has such", named.name),
        }
    }

    /// An object with these fields, and with those that are there already.
    fn object(&mut self, fields: &[Field], mut properties: Map<String, Value>) -> Value {
        let mut required: Vec<String> = properties.keys().cloned().collect();
        let mut flat = Vec::new();
        for field in fields {
            let shape = self.shape(&field.shape);
            if field.is_flat {
                flat.push(shape);
                continue;
            }
            properties.insert(field.key.clone(), described(shape, &field.doc));
            if !field.is_left_out {
                required.push(field.key.clone());
            }
        }
        let mut object = json!({ "type": "object", "properties": properties, "required": required });
        if !flat.is_empty() {
            object["allOf"] = flat.into();
        }
        object
    }

    fn shape(&mut self, shape: &Shape) -> Value {
        match shape {
            Shape::Integer => json!({ "type": "integer" }),
            Shape::Number => json!({ "type": "number" }),
            Shape::Text => json!({ "type": "string" }),
            Shape::Boolean => json!({ "type": "boolean" }),
            Shape::Anything => json!({}),
            Shape::List(inner) => json!({ "type": "array", "items": self.shape(inner) }),
            Shape::Tuple(all) => {
                let all: Vec<Value> = all.iter().map(|one| self.shape(one)).collect();
                json!({ "type": "array", "minItems": all.len(), "maxItems": all.len(), "prefixItems": all })
            }
            Shape::Map(inner) => json!({ "type": "object", "additionalProperties": self.shape(inner) }),
            Shape::Optional(inner) => match self.shape(inner) {
                Value::Object(one) if one.len() == 1 && one.contains_key("type") => {
                    json!({ "type": [one["type"], "null"] })
                }
                other => json!({ "anyOf": [other, { "type": "null" }] }),
            },
            Shape::Named(index) => self.link(*index),
        }
    }
}

/// With the comment on it; what marks a key, and where a link leads to, is for the page.
fn described(mut schema: Value, doc: &str) -> Value {
    let mut text = doc.replace("**Stable.** ", "");
    while let Some((start, middle)) = text.find("](").map(|middle| (text[..middle].rfind('['), middle)) {
        let end = text[middle..].find(')').map(|end| middle + end);
        let (Some(start), Some(end)) = (start, end) else { panic!("{doc}: half a link") };
        text = format!("{}{}{}", &text[..start], &text[start + 1..middle], &text[end + 1..]);
    }
    if !text.is_empty() {
        schema["description"] = text.into();
    }
    schema
}
