//! Whether PyTorch is installed twice.
//!
//! Wrong if two can be imported from different places (the first on the path wins: PYTHONPATH, then the environment, then the
//! user's folder), or if the records of two versions lie in one place: an update that was interrupted. A note if the first is
//! that of a virtual environment and the others are the system's, which it was made to see (`--system-site-packages`).

use super::listed;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::wheels::same_again;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let Ok(python) = &facts.python else { return Vec::new() };
    if let [first, others @ ..] = python.torch.as_slice()
        && !others.is_empty()
    {
        let place = |folder: &std::path::Path| match facts.is_named {
            true => format!(" in {}", folder.parent().unwrap_or(folder).display()),
            false => String::new(),
        };
        let is_meant = first.is_in_environment && others.iter().all(|other| !other.is_in_environment);
        let others: Vec<String> =
            others.iter().map(|other| format!("{}{}", other.version, place(&other.folder))).collect();
        let title = format!("there are {} installations of PyTorch", others.len() + 1);
        let which = format!(
            "{}{} is imported; {} is hidden by it.",
            first.version,
            place(&first.folder),
            listed(&others)
        );
        return vec![match is_meant {
            true => Finding::note("torch", title).means(format!(
                "{which} The virtual environment sees the system's packages, and has a PyTorch of its own."
            )),
            false => Finding::wrong("torch", title)
                .means(format!("{which} Packages that were built for the other fail in odd ways."))
                .fix("remove the one that you do not mean (see PYTHONPATH, and pip install --user)")
                .command(facts.pip("uninstall", "torch")),
        }];
    }
    let uninstall = facts.pip("uninstall", "-y torch");
    match python.packages.get("torch") {
        Some(versions) if versions.len() > 1 => vec![
            Finding::wrong("torch", format!("the records of {} lie in one place", listed(versions)))
                .means("An update was interrupted; files of both may be mixed.")
                .fix("install it anew")
                .command(format!("{uninstall}; {uninstall}; {}", same_again(facts))),
        ],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_torch};
    use crate::finding::Level::{Note, Wrong};
    use crate::python::Torch;

    #[test]
    fn two_installations_are_named_with_their_places() {
        let mut facts = machine();
        assert!(look(&facts).is_empty());
        let mut python = with_torch("2.11.0+cu128", Some("12.8"));
        python.torch.push(Torch {
            folder: "/usr/lib/python3/torch".into(),
            version: "2.4.0".into(),
            ..Torch::default()
        });
        facts.python = Ok(python);
        let findings = look(&facts);
        assert_eq!(summary(&findings), [(Wrong, "there are 2 installations of PyTorch")]);
        let means = findings[0].means.as_deref().unwrap();
        assert!(
            means.starts_with("2.11.0+cu128 in /venv is imported; 2.4.0 in /usr/lib/python3 is hidden"),
            "{means}"
        );
        if let Ok(python) = &mut facts.python {
            python.torch[0].is_in_environment = true;
        }
        assert_eq!(summary(&look(&facts)), [(Note, "there are 2 installations of PyTorch")]);
        assert_eq!(summary(&look(&facts.without_names()))[0].0, Note);
        facts.is_named = false;
        assert!(!look(&facts)[0].means.as_deref().unwrap().contains('/'));
    }

    #[test]
    fn an_update_that_was_interrupted_is_seen() {
        let mut facts = machine();
        let mut python = with_torch("2.11.0+cu128", Some("12.8"));
        python.packages.insert("torch".into(), vec!["2.10.0".into(), "2.11.0".into()]);
        facts.python = Ok(python);
        assert_eq!(summary(&look(&facts)), [(Wrong, "the records of 2.10.0 and 2.11.0 lie in one place")]);
        if let Ok(python) = &mut facts.python {
            python.has_pip = false;
        }
        let command = look(&facts)[0].command.clone().unwrap();
        let uninstall = "uv pip uninstall --python /venv/bin/python -y torch; ";
        assert!(command.starts_with(&uninstall.repeat(2)), "{command}");
    }
}
