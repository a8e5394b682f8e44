//! Whether the driver is new enough for PyTorch's CUDA.
//!
//! Wrong if it is of an older generation: within a major version any driver of that generation does, across major versions none.
//! The least drivers are NVIDIA's (CUDA Compatibility, minor version compatibility: 450.80.02 for 11, 525.60.13 for 12, 580.65.06
//! for 13). A package for forward compatibility (cuda-compat, data centre cards only) can lift this, and is not looked for.

use crate::facts::Facts;
use crate::finding::Finding;
use crate::wheels::{Wheels, driver_can, least_driver};

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let gpus = &facts.sample.gpus;
    let Some(torch) = facts.torch() else { return Vec::new() };
    let (Some(built), Some(can)) = (torch.cuda_numbers(), gpus.cuda) else { return Vec::new() };
    if driver_can(facts, built.0) {
        return Vec::new();
    }
    let needs =
        least_driver(built.0).map(|least| format!(" needs driver {least} or later:")).unwrap_or_default();
    let title = format!(
        "PyTorch {} is built for CUDA {}.{}, driver {} can do {}.{}",
        torch.version,
        built.0,
        built.1,
        gpus.driver.as_deref().unwrap_or("unknown"),
        can.0,
        can.1
    );
    let finding = Finding::wrong("torch", title).means(format!(
        "CUDA {}{needs} \"The NVIDIA driver on your system is too old\", and torch.cuda.is_available() is False.",
        built.0
    ));
    vec![match Wheels::best(facts) {
        Some(wheels) => {
            finding.fix(format!("update the driver, or {}", wheels.fix(facts))).command(wheels.command(facts))
        }
        None => finding.fix("update the driver: no wheel of PyTorch is for these cards and this one"),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_torch};
    use crate::finding::Level::Wrong;

    fn with(driver: &str, can: (u32, u32), cuda: &str) -> Facts {
        let mut facts = machine();
        facts.sample.gpus.driver = Some(driver.to_owned());
        facts.sample.gpus.cuda = Some(can);
        facts.python = Ok(with_torch("2.11.0", Some(cuda)));
        facts
    }

    #[test]
    fn an_older_generation_of_drivers_is_wrong() {
        let facts = with("550.54.14", (12, 4), "13.0");
        let findings = look(&facts);
        assert_eq!(
            summary(&findings),
            [(Wrong, "PyTorch 2.11.0 is built for CUDA 13.0, driver 550.54.14 can do 12.4")]
        );
        assert!(findings[0].means.as_deref().unwrap().contains("580.65.06"));
        assert!(findings[0].command.as_deref().unwrap().ends_with("/cu126"));
        let findings = look(&with("470.57.02", (11, 4), "12.6"));
        assert!(findings[0].command.as_deref().unwrap().ends_with("/cu118"));
        let findings = look(&with("390.157", (9, 1), "12.6"));
        assert_eq!(findings[0].command, None);
    }

    #[test]
    fn an_older_minor_version_does() {
        assert!(look(&with("525.60.13", (12, 0), "12.8")).is_empty());
        assert!(look(&with("580.95.05", (13, 0), "12.8")).is_empty());
        assert!(look(&with("580.95.05", (12, 9), "13.0")).is_empty(), "the version wins");
        let mut unknown = with("580.95.05", (12, 9), "13.0");
        unknown.sample.gpus.cuda = None;
        assert!(look(&unknown).is_empty());
    }
}
