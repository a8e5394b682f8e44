//! Verbs as tools: what a tool takes is read off its verb's arguments, and a call becomes the command line that would be typed.
//!
//! So a tool has the verb's own help, defaults, checks and code, and its answer is what the verb prints. Options are offered one by one:
//! none that writes, runs or reads elsewhere comes to a model because somebody added it to the command.
//! Boundary: knows verbs by their names only; the protocol is `oomph-mcp`'s.

use crate::Outcome;
use crate::printer::Printer;
use crate::roots::Roots;
use anyhow::Context;
use clap::builder::ValueRange;
use clap::{Arg, ArgAction, Command};
use oomph_mcp::{Answer, Effect, Going, Tool, Toolbox};
use serde_json::{Map, Value, json};
use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A verb that is offered.
struct Offer {
    verb: &'static str,
    /// Those of its arguments that are; by their long names.
    options: &'static [&'static str],
    /// Whether it asks a Python: the one that whoever started the server named, and none that a model names.
    has_python: bool,
    effect: Effect,
}

const OFFERS: [Offer; 6] = [
    Offer {
        verb: "explain",
        options: &["files", "lines", "stacks"],
        has_python: false,
        effect: Effect::Reads,
    },
    Offer {
        verb: "replay",
        options: &["file", "conf", "memory", "gpu", "limit", "torch", "allocator", "patience", "device"],
        has_python: false,
        effect: Effect::Reads,
    },
    Offer {
        verb: "tune",
        options: &["file", "memory", "gpu", "limit", "try", "torch", "device"],
        has_python: false,
        effect: Effect::Reads,
    },
    Offer { verb: "diff", options: &["before", "after", "lines"], has_python: false, effect: Effect::Reads },
    Offer { verb: "doctor", options: &["all"], has_python: true, effect: Effect::Reads },
    // A module is found on Python's path, which has more than the folders: only files are run.
    Offer {
        verb: "predict",
        options: &[
            "script", "gpu", "memory", "gpus", "steps", "until", "longest", "timeout", "conf", "max",
            "sweep", "ranks", "output", "lines",
        ],
        has_python: true,
        effect: Effect::Runs,
    },
];

const INSTRUCTIONS: &str = "oomph says where the GPU memory of PyTorch programs went, why it ran out, and what would have helped. \
    Start with `explain` on a recording (a snapshot of torch.cuda.memory, or an .oomph file that `oomph run` wrote): its first finding names \
    the cause and the fix. Then `replay` for another card or other allocator settings, `tune` for the setting that needs least, `diff` for two \
    recordings, `doctor` for this machine. `predict` says whether a training script fits a card, without a GPU: it runs the script.";

type Call = fn(&[OsString], &mut Printer) -> anyhow::Result<Outcome>;

/// The tools of a server.
pub(crate) struct Tools {
    verbs: Vec<(&'static Offer, Command, Map<String, Value>)>,
    call: Call,
    roots: Roots,
    may_run: bool,
    python: Option<PathBuf>,
}

impl Tools {
    /// Of the verbs of a command; `call` does what is typed.
    pub(crate) fn new(
        command: &Command,
        call: Call,
        roots: Roots,
        may_run: bool,
        python: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let verbs = OFFERS.iter().map(|offer| {
            let verb = command.find_subcommand(offer.verb);
            let schema = oomph_report::json::schema(offer.verb);
            let (verb, schema) = verb.zip(schema).with_context(|| format!("{}: no such verb", offer.verb))?;
            Ok((offer, verb.clone(), serde_json::from_str(schema)?))
        });
        Ok(Self { verbs: verbs.collect::<anyhow::Result<_>>()?, call, roots, may_run, python })
    }

    /// What would be typed for a call.
    fn typed(
        &self,
        offer: &Offer,
        verb: &Command,
        arguments: Map<String, Value>,
    ) -> Result<Vec<OsString>, String> {
        let mut typed: Vec<OsString> = vec!["oomph".into(), offer.verb.into()];
        let mut by_place = Vec::new();
        let has_output = arguments.get("output").is_some_and(|value| !value.is_null());
        for (key, value) in arguments {
            let argument = offered(offer, verb).find(|argument| name(argument) == key).ok_or_else(|| {
                format!("{} takes no {key:?}, only {}", offer.verb, offer.options.join(", "))
            })?;
            let values = values(argument, &key, value)?;
            for path in paths(argument, &values) {
                self.roots.check(Path::new(path))?;
            }
            match verb.get_positionals().position(|one| one.get_id() == argument.get_id()) {
                Some(place) => by_place.push((place, argument, values)),
                None if is_flag(argument) => typed.extend(values.iter().map(|_| format!("--{key}").into())),
                None => typed.extend(values.iter().map(|value| format!("--{key}={value}").into())),
            }
        }
        if let Some(python) = self.python.as_ref().filter(|_| offer.has_python) {
            let mut option = OsString::from("--python=");
            option.push(python);
            typed.push(option);
        }
        if offer.effect == Effect::Runs && !has_output {
            typed.push("--no-recording".into());
        }
        by_place.sort_by_key(|(place, ..)| *place);
        for (_, argument, values) in by_place {
            let is_rest = argument.is_trailing_var_arg_set();
            typed.extend(is_rest.then(|| "--".into()));
            // What begins with a dash is a file here, and no option.
            typed.extend(values.into_iter().map(|value| match value.starts_with('-') && !is_rest {
                true => format!("./{value}").into(),
                false => value.into(),
            }));
        }
        Ok(typed)
    }
}

impl Toolbox for Tools {
    fn instructions(&self) -> String {
        let refused = match self.may_run {
            true => "",
            false => " Here `predict` is refused: whoever wants it starts the server with --allow-run.",
        };
        format!(
            "{INSTRUCTIONS}{refused} Files are read below {}; relative paths begin at the first.",
            self.roots.shown()
        )
    }

    fn tools(&self) -> Vec<Tool> {
        self.verbs
            .iter()
            .map(|(offer, verb, schema)| Tool {
                name: offer.verb,
                title: verb.get_about().map(ToString::to_string).unwrap_or_default(),
                description: self.description(offer, verb),
                input: input(offer, verb),
                output: schema.clone(),
                effect: offer.effect,
            })
            .collect()
    }

    fn call(&self, name: &str, arguments: Map<String, Value>, going: &Going) -> Result<Answer, String> {
        let found = self.verbs.iter().find(|(offer, ..)| offer.verb == name);
        let (offer, verb, _) = found.ok_or_else(|| format!("there is no tool {name:?}"))?;
        if offer.effect == Effect::Runs && !self.may_run {
            return Err(format!(
                "{name} runs a script, and this server only reads\n\nhint: start the server with --allow-run: \"args\": [\"mcp\", \"--allow-run\"]"
            ));
        }
        let typed = self.typed(offer, verb, arguments)?;
        let mut printer = Printer::keeping(going);
        let outcome = (self.call)(&typed, &mut printer);
        let mut kept = printer.kept().ok_or("nothing was kept")?;
        match outcome {
            Ok(Outcome::Interrupted(_)) => return Err("cancelled".to_owned()),
            Ok(_) => {}
            Err(error) => kept.said.push(match error.downcast_ref::<clap::Error>() {
                Some(error) => sentence(error),
                None => format!("{error:#}"),
            }),
        }
        match serde_json::from_str(&kept.json) {
            Ok(document) => {
                kept.said.insert(0, kept.text);
                Ok(Answer { text: kept.said, document })
            }
            Err(_) => Err(kept.said.join("\n\n")),
        }
    }
}

impl Tools {
    /// The help of the verb, less what is only for those who type.
    fn description(&self, offer: &Offer, verb: &Command) -> String {
        let help = verb.get_long_about().or(verb.get_about()).map(ToString::to_string).unwrap_or_default();
        let is_for_tools = |part: &&str| !part.starts_with("Exits with") && !part.starts_with("--");
        let mut parts: Vec<&str> = help.split("\n\n").filter(is_for_tools).collect();
        if offer.effect == Effect::Runs && !self.may_run {
            parts.insert(1, "Refused by this server, which was started without --allow-run.");
        }
        parts.join("\n\n")
    }
}

fn name(argument: &Arg) -> &str {
    argument.get_long().unwrap_or(argument.get_id().as_str())
}

/// In the order in which the verb has them.
fn offered<'a>(offer: &'a Offer, verb: &'a Command) -> impl Iterator<Item = &'a Arg> {
    verb.get_arguments().filter(|argument| offer.options.contains(&name(argument)))
}

fn is_flag(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

fn is_list(argument: &Arg) -> bool {
    let several =
        argument.get_num_args().is_some_and(|range| range != ValueRange::SINGLE && range.max_values() > 1);
    several || matches!(argument.get_action(), ArgAction::Append)
}

fn is_of<T: 'static>(argument: &Arg) -> bool {
    argument.get_value_parser().type_id() == TypeId::of::<T>()
}

fn is_integer(argument: &Arg) -> bool {
    is_of::<u16>(argument) || is_of::<u32>(argument) || is_of::<u64>(argument) || is_of::<usize>(argument)
}

/// Those of an argument's values that are paths: all, or the script that the others are arguments of.
fn paths<'a>(argument: &Arg, values: &'a [String]) -> &'a [String] {
    if is_of::<PathBuf>(argument) {
        values
    } else if argument.is_trailing_var_arg_set() {
        &values[..values.len().min(1)]
    } else {
        &[]
    }
}

/// The JSON Schema of what a tool takes.
fn input(offer: &Offer, verb: &Command) -> Map<String, Value> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for argument in offered(offer, verb) {
        let mut one = if is_flag(argument) {
            json!({ "type": "boolean" })
        } else if is_integer(argument) {
            json!({ "type": "integer", "minimum": 0 })
        } else {
            json!({ "type": "string" })
        };
        let words: Vec<String> =
            argument.get_possible_values().iter().map(|word| word.get_name().to_owned()).collect();
        if !words.is_empty() && !is_flag(argument) {
            // A card has other names than the one that the catalogue lists.
            let key = if argument.is_hide_possible_values_set() { "examples" } else { "enum" };
            one[key] = words.into();
        }
        if is_list(argument) {
            one = json!({ "type": "array", "items": one });
            if argument.is_required_set() {
                one["minItems"] = 1.into();
            }
        }
        if let Some(default) = argument.get_default_values().first().and_then(|value| value.to_str()) {
            // A number, where it is one.
            one["default"] = if is_flag(argument) || is_integer(argument) {
                default.parse().unwrap_or_else(|_| default.into())
            } else {
                default.into()
            };
        }
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        // There is no stdin here to read from.
        let help = help.split("; `-` reads").next().unwrap_or_default();
        one["description"] = help.into();
        if argument.is_required_set() {
            required.push(name(argument).to_owned());
        }
        properties.insert(name(argument).to_owned(), one);
    }
    let schema = [
        ("type", json!("object")),
        ("properties", properties.into()),
        ("required", required.into()),
        ("additionalProperties", false.into()),
    ];
    schema.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The values of an argument as they would be typed; of a flag, one if it is set.
fn values(argument: &Arg, key: &str, value: Value) -> Result<Vec<String>, String> {
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Number(number) if number.is_u64() || number.is_i64() => Ok(number.to_string()),
        other => {
            let kind = if is_integer(argument) { "a whole number" } else { "a string" };
            Err(format!("{key}: {} is not {kind}", shortened(&other)))
        }
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Bool(is_set) if is_flag(argument) => Ok(is_set.then(String::new).into_iter().collect()),
        other if is_flag(argument) => Err(format!("{key}: {} is neither true nor false", shortened(&other))),
        Value::Array(all) if is_list(argument) => all.into_iter().map(text).collect(),
        one => Ok(vec![text(one)?]),
    }
}

/// Enough of a value to know it by.
fn shortened(value: &Value) -> String {
    let text: String = value.to_string().chars().take(60).collect();
    oomph_words::printable(&text)
}

/// What clap says is wrong, without how the command is used.
fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default();
    let text = text.split("\n\nFor more information").next().unwrap_or_default();
    text.strip_prefix("error: ").unwrap_or(text).trim_end().to_owned()
}
