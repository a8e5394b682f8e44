//! Checks: each looks at one thing.
//!
//! One check a file. Its header comment is its documentation (`oomph doctor --checks` lists them), the file's name its name, and
//! `look` looks at [`Facts`] and says what it found. What is as it should be is said too, in one line, where that line helps. To
//! add a check, add a file and its name to the list below.

use crate::facts::Facts;
use crate::finding::Finding;

macro_rules! checks {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*

        /// All checks, in the order of the report.
        pub static ALL: &[Check] = &[$(Check {
            module: stringify!($module),
            source: include_str!(concat!(stringify!($module), ".rs")),
            look: $module::look,
        }),*];
    };
}

checks! {
    driver,
    visible_devices,
    card,
    card_mode,
    dead_processes,
    unaccounted_memory,
    torch_build,
    torch_and_driver,
    torch_and_card,
    torch_twice,
    packages,
    other_libraries,
    torch_says,
    allocator_variable,
    allocator_settings,
    allocator_trouble,
    debugging,
    other_frameworks,
    ram,
    swap,
    shared_memory,
    process_limits,
    threads,
    surroundings,
    oomph,
}

pub struct Check {
    module: &'static str,
    source: &'static str,
    look: fn(&Facts) -> Vec<Finding>,
}

impl Check {
    /// Its name, with dashes.
    pub fn name(&self) -> String {
        self.module.replace('_', "-")
    }

    /// What it finds, in its name.
    pub(crate) fn findings(&self, facts: &Facts) -> Vec<Finding> {
        (self.look)(facts).into_iter().map(|finding| Finding { check: self.name(), ..finding }).collect()
    }

    /// Its documentation, in Markdown: the header of its file.
    pub fn documentation(&self) -> String {
        (self.source.lines())
            .take_while(|line| line.starts_with("//!"))
            .map(|line| line.trim_start_matches("//!").strip_prefix(' ').unwrap_or(""))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// What it looks at, in one line.
    pub fn summary(&self) -> String {
        self.documentation().lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
    }
}

/// Things in a sentence: `a`, `a and b`, `a, b and c`.
fn listed(things: &[String]) -> String {
    match things {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
pub(crate) mod test_fixtures {
    //! Facts for tests.

    use crate::facts::Facts;
    use crate::finding::{Finding, Level};
    use crate::python::{Python, Torch};
    use oomph_host::{Gpu, GpuProcess, Process, Use};

    pub(crate) const GIB: u64 = 1 << 30;
    pub(crate) const MIB: u64 = 1 << 20;

    /// A T4 with so much memory, of which so much is used.
    pub(crate) fn card(index: u32, total: u64, used: u64) -> Gpu {
        Gpu {
            index,
            uuid: None,
            name: "Tesla T4".to_owned(),
            total,
            used,
            reserved: Some(0),
            free: total - used,
            busy: None,
            temperature: None,
            power: None,
            capability: Some((7, 5)),
            mig: false,
            exclusive: false,
            is_virtual: false,
            processes: Vec::new(),
        }
    }

    /// The card with these processes on it.
    pub(crate) fn on_card(card: Gpu, processes: &[(u32, u64)]) -> Gpu {
        let of = |&(pid, bytes): &(u32, u64)| GpuProcess { pid, bytes: Some(bytes), kind: Use::Compute };
        Gpu { processes: processes.iter().map(of).collect(), ..card }
    }

    pub(crate) fn process(pid: u32, user: &str, name: &str, state: char) -> Process {
        let command = format!("{name} --token hidden");
        Process { command, ..Facts::unknown_process(pid, user, name, state) }
    }

    /// A Python with such a PyTorch: `2.11.0+cu128` and `12.8`.
    pub(crate) fn with_torch(version: &str, cuda: Option<&str>) -> Python {
        Python {
            version: "3.11.2".to_owned(),
            executable: "/venv/bin/python".to_owned(),
            has_pip: true,
            machine: "x86_64".to_owned(),
            torch: vec![Torch {
                folder: "/venv/torch".into(),
                version: version.to_owned(),
                cuda: cuda.map(str::to_owned),
                ..Torch::default()
            }],
            ..Python::default()
        }
    }

    /// A machine with an idle T4, a driver for CUDA 12.8 and a PyTorch that fits.
    pub(crate) fn machine() -> Facts {
        let mut facts = Facts::unknown();
        facts.sample.gpus.driver = Some("570.86.10".to_owned());
        facts.sample.gpus.cuda = Some((12, 8));
        facts.sample.gpus.cards = vec![card(0, 15 * GIB, 0)];
        facts.python = Ok(with_torch("2.11.0+cu128", Some("12.8")));
        facts
    }

    /// With settings of the environment.
    pub(crate) fn with_settings(mut facts: Facts, settings: &[(&'static str, &str)]) -> Facts {
        facts.settings.values = settings.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        facts
    }

    /// Levels and titles, for comparing.
    pub(crate) fn summary(findings: &[Finding]) -> Vec<(Level, &str)> {
        findings.iter().map(|finding| (finding.level, finding.title.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level;

    #[test]
    fn every_check_is_documented_and_has_a_name_of_its_own() {
        for check in ALL {
            assert!(check.summary().len() > 20, "{} says what it looks at", check.name());
            assert!(
                check.documentation().lines().count() >= 3,
                "{} says when something is wrong",
                check.name()
            );
            assert_eq!(ALL.iter().filter(|other| other.module == check.module).count(), 1);
        }
    }

    #[test]
    fn nothing_is_wrong_with_a_machine_of_which_nothing_is_known() {
        let findings = crate::examine(&Facts::unknown());
        assert!(findings.iter().all(|finding| finding.level != Level::Wrong), "{findings:?}");
    }

    #[test]
    fn nothing_is_wrong_with_a_plain_machine_and_what_is_wrong_says_what_to_do() {
        let findings = crate::examine(&test_fixtures::machine());
        assert!(findings.iter().all(|finding| finding.level == Level::Fine), "{findings:#?}");
        assert!(findings.is_sorted_by_key(|finding| finding.level));
    }

    #[test]
    fn things_in_a_sentence() {
        let things: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!((listed(&things[..1]), listed(&things[..2])), ("a".into(), "a and b".into()));
        assert_eq!(listed(&things), "a, b and c");
    }
}
