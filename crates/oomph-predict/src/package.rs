//! The Python package that the command carries, for what must run where only the command was installed.
//!
//! A script's Python may have another version of the package, or none: inside a child it is always that of the command.

use std::io;
use std::path::{Path, PathBuf};

macro_rules! package {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../../python/oomph/", $path)))),*]
    };
}

/// By path below `oomph`. The notebook's part is left out: there is none in a child.
const FILES: &[(&str, &str)] = &package![
    "__init__.py",
    "__main__.py",
    "_black_box.py",
    "_cgroups.py",
    "_doctor/__init__.py",
    "_doctor/checkup.py",
    "_doctor/diagnosis.py",
    "_doctor/drawing.py",
    "_doctor/findings.py",
    "_doctor/needs.py",
    "_doctor/objects.py",
    "_environment.py",
    "_extension.py",
    "_find.py",
    "_floor.py",
    "_free.py",
    "_heap.py",
    "_measure.py",
    "_pinned.py",
    "_predict.py",
    "_progress.py",
    "_ram.py",
    "_record.py",
    "_report.py",
    "_sizes.py",
    "_version.py",
    "_who.py",
    "data/__init__.py",
    "data/_column.py",
    "data/_frames.py",
    "data/_input.py",
    "data/_matrix.py",
    "data/_memory.py",
    "data/_native.py",
    "data/_out.py",
    "data/_profile.py",
    "data/_progress.py",
    "data/_ray.py",
    "data/_ring.py",
    "data/_shrink.py",
    "data/_stream.py",
    "data/_table.py",
    "data/_torch.py",
    "data/share.py",
    "fitting/__init__.py",
    "fitting/adapters/__init__.py",
    "fitting/adapters/accelerating.py",
    "fitting/adapters/hugging_face.py",
    "fitting/adapters/lightning.py",
    "fitting/adapters/loops.py",
    "fitting/errors.py",
    "fitting/fit.py",
    "fitting/inference.py",
    "fitting/losses/__init__.py",
    "fitting/losses/counts.py",
    "fitting/losses/cross_entropy.py",
    "fitting/losses/loss_of.py",
    "fitting/losses/trials.py",
    "fitting/planning/__init__.py",
    "fitting/planning/asking.py",
    "fitting/planning/card.py",
    "fitting/planning/child.py",
    "fitting/planning/costs.py",
    "fitting/planning/inference_plan.py",
    "fitting/planning/inference_search.py",
    "fitting/planning/payload.py",
    "fitting/planning/plan.py",
    "fitting/planning/search.py",
    "fitting/planning/words.py",
    "fitting/running/__init__.py",
    "fitting/running/applied.py",
    "fitting/running/batches.py",
    "fitting/running/inference.py",
    "fitting/running/largest_batch.py",
    "fitting/running/outputs.py",
    "fitting/running/ranks.py",
    "fitting/running/repeating.py",
    "fitting/running/spill.py",
    "fitting/running/step.py",
    "fitting/script/__init__.py",
    "fitting/script/script.py",
    "fitting/script/source.py",
    "fitting/script/watching.py",
    "fitting/techniques/__init__.py",
    "fitting/techniques/activations.py",
    "fitting/techniques/allocator.py",
    "fitting/techniques/autocast.py",
    "fitting/techniques/blocks.py",
    "fitting/techniques/checkpoints.py",
    "fitting/techniques/host.py",
    "fitting/techniques/inference.py",
    "fitting/techniques/optimizers.py",
    "fitting/techniques/parts.py",
    "fitting/techniques/technique.py",
    "fitting/techniques/training.py",
    "fitting/techniques/weight_stream.py",
    "fitting/techniques/weights.py",
    "host.py",
    "live/__init__.py",
    "live/census.py",
    "live/frames.py",
    "live/graphs.py",
    "live/handlers.py",
    "live/imports.py",
    "live/library_code.py",
    "live/lines.py",
    "live/native.py",
    "live/out_of_memory.py",
    "live/recording.py",
    "live/roots.py",
    "live/sitecustomize.py",
    "live/startup.py",
    "live/tensors.py",
    "live/walk.py",
];

/// Writes the package into a folder that is to be on Python's path.
pub(crate) fn write(folder: &Path) -> Result<(), (PathBuf, io::Error)> {
    for (name, text) in FILES {
        let path = folder.join("oomph").join(name);
        let place = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(place).map_err(|error| (place.to_path_buf(), error))?;
        std::fs::write(&path, text).map_err(|error| (path.clone(), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::FILES;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_file_of_the_package_is_carried() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/oomph");
        let mut there = BTreeSet::new();
        let fitting = ["adapters/", "losses/", "planning/", "running/", "script/", "techniques/", ""];
        let folders = ["", "_doctor/", "data/", "live/"].map(str::to_owned);
        for folder in folders.into_iter().chain(fitting.map(|folder| format!("fitting/{folder}"))) {
            for entry in std::fs::read_dir(package.join(&folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name.ends_with(".py") {
                    there.insert(format!("{folder}{name}"));
                }
            }
        }
        let carried: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(carried, there);
    }

    #[test]
    fn the_package_is_of_the_version_of_the_command() {
        let (_, text) = FILES.iter().find(|(name, _)| *name == "_version.py").unwrap();
        assert!(text.contains(&format!("VERSION = \"{}\"", env!("CARGO_PKG_VERSION"))), "{text}");
    }
}
