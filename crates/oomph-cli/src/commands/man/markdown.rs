//! The reference of all verbs as Markdown, from the same texts as `--help`. The committed one is docs/reference/commands.md; `make reference`
//! writes it.
//!
//! By hand: clap-markdown prints the examples of a verb as running text.
//! Nothing here depends on the machine: no width of a terminal, no colour, no cards of a user's own.

use clap::{Arg, Command};
use std::fmt::Write;

/// What stands above everything else. Whoever changes the file should change the code.
const HEAD: &str = "# Commands\n\nMade from the code by `make reference`: change the help text of a verb (`crates/oomph-cli/src/commands`), not this \
                    page. `oomph help VERB` prints the same. What comes out, exit codes and variables: [output](output.md).\n\n";

/// A page about the command and all of its verbs.
pub(super) fn page(mut command: Command) -> String {
    command.build();
    let mut out = HEAD.to_owned();
    out.push_str("| verb | |\n|---|---|\n");
    for verb in verbs(&command) {
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let name = name(verb);
        let _ = writeln!(out, "| [`{name}`](#{}) | {} |", name.replace(' ', "-"), harmless(&about));
    }
    section(&command, 2, &mut out);
    out
}

/// All verbs in order, those below a verb behind it.
fn verbs(command: &Command) -> Vec<&Command> {
    command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        .flat_map(|verb| std::iter::once(verb).chain(verbs(verb)))
        .collect()
}

fn name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}

fn section(command: &Command, level: usize, out: &mut String) {
    let _ = writeln!(out, "\n{} {}\n", "#".repeat(level), name(command));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        out.push_str(&prose(&about.to_string()));
    }
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(out, "\n```text\n{}\n```", usage.trim_start_matches("Usage: ").trim_end());
    let is_root = level == 2;
    let shown = |argument: &&Arg| {
        let id = argument.get_id().as_str();
        !argument.is_hide_set() && id != "help" && id != "version" && (is_root || !argument.is_global_set())
    };
    let (positional, options): (Vec<_>, Vec<_>) =
        command.get_arguments().filter(shown).partition(|argument| argument.is_positional());
    if positional.len() + options.len() > 0 {
        out.push('\n');
    }
    if is_root {
        out.push_str("Before and after every verb:\n\n");
    }
    for argument in positional.into_iter().chain(options) {
        item(argument, out);
    }
    if let Some(more) = command.get_after_long_help().or(command.get_after_help()) {
        let _ = write!(out, "\n{}", prose(&more.to_string()));
    }
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        // All verbs stand under the command, those of `oomph data` too: they are looked up by their whole name.
        section(verb, level.max(3), out);
    }
}

/// One argument or option: how it is typed, what it does, what may stand there.
fn item(argument: &Arg, out: &mut String) {
    let short = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, "),
        _ => String::new(),
    };
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(out, "- `{short}{argument}`");
    if !help.is_empty() {
        let _ = write!(out, ": {}", harmless(&help.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    let takes_values = argument.get_action().takes_values();
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_values && !argument.is_hide_default_value_set() && !defaults.is_empty() {
        let _ = write!(out, " [default: `{}`]", defaults.join(" "));
    }
    out.push('\n');
    if takes_values && !argument.is_hide_possible_values_set() {
        for value in argument.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
            let _ = write!(out, "  - `{}`", value.get_name());
            if let Some(help) = value.get_help() {
                let _ = write!(out, ": {}", harmless(&help.to_string()));
            }
            out.push('\n');
        }
    }
}

/// Paragraphs as they are; lines that are set in become a block of code.
fn prose(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.trim_end().lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with("  ") {
            let _ = writeln!(out, "{}", harmless(line));
            continue;
        }
        if !out.is_empty() && !out.ends_with("\n\n") {
            out.push('\n');
        }
        let first = line.strip_prefix("  ").unwrap_or(line);
        let language = if first.starts_with("oomph ") { "sh" } else { "text" };
        let _ = writeln!(out, "```{language}\n{first}");
        while let Some(next) = lines.next_if(|next| next.starts_with("  ")) {
            let _ = writeln!(out, "{}", next.strip_prefix("  ").unwrap_or(next));
        }
        out.push_str("```\n");
    }
    out
}

/// Text in which Markdown sees nothing but text; what stands between backticks is code already.
fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        if index > 0 {
            out.push('`');
        }
        if index % 2 == 1 {
            out.push_str(part);
            continue;
        }
        for letter in part.chars() {
            if matches!(letter, '<' | '*' | '|' | '\\') {
                out.push('\\');
            }
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{harmless, page, prose};
    use clap::{Arg, ArgAction, Command};

    #[test]
    fn lines_that_are_set_in_become_code_and_the_rest_stays_text() {
        let shown = prose("Examples:\n  oomph top\n  oomph top --once\n\nNothing <else> is *needed*.");
        assert_eq!(
            shown,
            "Examples:\n\n```sh\noomph top\noomph top --once\n```\n\nNothing \\<else> is \\*needed\\*.\n"
        );
        assert_eq!(harmless("`<CODE>` or <NAME>"), "`<CODE>` or \\<NAME>");
    }

    #[test]
    fn a_page_has_what_is_shown_and_nothing_that_is_hidden() {
        let verb = Command::new("look")
            .about("Look at it")
            .arg(Arg::new("file").value_name("FILE").required(true).help("What to look at"))
            .arg(Arg::new("how").long("how").short('w').value_parser(["near", "far"]).default_value("near"))
            .arg(Arg::new("all").long("all").action(ArgAction::SetTrue).help("All of it"))
            .arg(Arg::new("secret").long("secret").action(ArgAction::SetTrue).hide(true));
        let command = Command::new("oomph")
            .arg(Arg::new("quiet").long("quiet").action(ArgAction::SetTrue).global(true).help("Say less"))
            .subcommand(verb)
            .subcommand(Command::new("inner").hide(true));
        let page = page(command);
        assert!(page.contains("| [`oomph look`](#oomph-look) | Look at it |"));
        assert!(page.contains("```text\noomph look [OPTIONS] <FILE>\n```"));
        assert!(page.contains("- `<FILE>`: What to look at\n"));
        assert!(page.contains(
            "- `-w, --how <how>` [default: `near`]\n  - `near`\n  - `far`\n- `--all`: All of it\n"
        ));
        assert_eq!(page.matches("`--quiet`").count(), 1);
        assert!(!page.contains("secret") && !page.contains("inner"));
    }
}
