//! Whether the command and the Python package of oomph are of one version.
//!
//! Wrong if they differ: the package starts the command and loads its library, and refuses one of another version.

use crate::facts::Facts;
use crate::finding::Finding;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let own = &facts.oomph;
    let package = facts.python.as_ref().ok().and_then(|python| python.oomph.as_ref());
    vec![match package {
        Some(package) if package != own => {
            Finding::wrong("oomph", format!("the command is {own}, the Python package {package}"))
                .means("import oomph finds a command of another version, and refuses its library.")
                .fix("install one of them anew")
                .command(facts.pip("install", "--force-reinstall oomph"))
        }
        Some(_) => Finding::fine("oomph", format!("{own}, command and Python package")),
        None => Finding::fine("oomph", format!("{own}; this Python has no package oomph")),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_torch};
    use crate::finding::Level::{Fine, Wrong};

    #[test]
    fn the_command_and_the_package_must_agree() {
        let mut facts = machine();
        facts.oomph = "0.2.0".to_owned();
        assert_eq!(summary(&look(&facts)), [(Fine, "0.2.0; this Python has no package oomph")]);
        let mut python = with_torch("2.11.0", None);
        python.oomph = Some("0.1.0".to_owned());
        facts.python = Ok(python);
        assert_eq!(summary(&look(&facts)), [(Wrong, "the command is 0.2.0, the Python package 0.1.0")]);
        facts.oomph = "0.1.0".to_owned();
        assert_eq!(summary(&look(&facts)), [(Fine, "0.1.0, command and Python package")]);
    }
}
