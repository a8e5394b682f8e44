//! The GPUs that people have: memory, what of it is usable, architecture.
//!
//! The catalogue is data (`gpus.toml`), built in. Users add cards, or correct one, in a file of the same form; where
//! it lies is [`user_file`]. Nothing here asks a real GPU.

pub mod folders;

use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// What people type: `t4`, `a100-80gb`.
    pub name: String,
    /// What the driver calls it.
    pub title: String,
    /// Bytes, as CUDA says them.
    pub memory: u64,
    /// Bytes that a CUDA context takes.
    #[serde(default = "usual_context")]
    pub context: u64,
    /// Such as 8.9.
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// What those call it that lend it out: SkyPilot, and mostly Ray.
    #[serde(default)]
    pub accelerator: Option<String>,
    /// What people call it for short, though names of others begin so too.
    #[serde(default)]
    pub short: Option<String>,
    /// Where the numbers are from.
    #[serde(default)]
    pub source: String,
}

impl Gpu {
    /// What is left for a program's tensors.
    pub fn usable(&self) -> u64 {
        self.memory.saturating_sub(self.context)
    }
}

/// Of the cards that were measured, most take about this.
fn usual_context() -> u64 {
    400 << 20
}

/// What is wrong with a catalogue.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    /// The file is not a catalogue.
    #[error("{}: {message}", path.display())]
    Form { path: PathBuf, message: String },
}

/// All cards that are known.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    gpus: Vec<Gpu>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    gpu: Vec<Gpu>,
}

const BUILT_IN: &str = include_str!("../gpus.toml");

impl Catalogue {
    pub fn built_in() -> Self {
        let gpus = toml::from_str::<File>(BUILT_IN).map(|file| file.gpu).unwrap_or_default();
        Self { gpus }
    }

    /// The built-in cards and the user's, which win.
    pub fn load() -> Result<Self, CatalogueError> {
        let mut catalogue = Self::built_in();
        if let Some(path) = user_file().filter(|path| path.exists()) {
            catalogue.add_file(&path)?;
        }
        Ok(catalogue)
    }

    /// Adds the cards of a file; one with a known name takes its place.
    pub fn add_file(&mut self, path: &Path) -> Result<(), CatalogueError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| CatalogueError::Read { path: path.to_owned(), error })?;
        let wrong = |message: String| CatalogueError::Form { path: path.to_owned(), message };
        let file: File = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        for gpu in file.gpu {
            if gpu.name.is_empty() || gpu.memory == 0 || gpu.context >= gpu.memory {
                return Err(wrong(format!(
                    "the card {:?} needs a name, and memory that is more than its context",
                    gpu.name
                )));
            }
            self.gpus.retain(|known| known.name != gpu.name);
            self.gpus.push(gpu);
        }
        Ok(())
    }

    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The card that is meant: by its name, by its title, by what people call it for short, or by the only name that begins so.
    pub fn find(&self, typed: &str) -> Result<&Gpu, String> {
        let plain = |text: &str| -> String {
            let text = text.to_lowercase();
            let text = text.replace("nvidia", "").replace("geforce", "").replace("tesla", "");
            text.chars().filter(char::is_ascii_alphanumeric).collect()
        };
        let wanted = plain(typed);
        let found = |gpu: &&Gpu| {
            [Some(&gpu.name), Some(&gpu.title), gpu.short.as_ref()]
                .into_iter()
                .flatten()
                .any(|name| plain(name) == wanted)
        };
        if let Some(gpu) = self.gpus.iter().find(found) {
            return Ok(gpu);
        }
        let short =
            |gpu: &Gpu| plain(&gpu.name).trim_start_matches("rtx").trim_start_matches("gtx").to_owned();
        let beginning: Vec<&Gpu> = (self.gpus.iter())
            .filter(|gpu| {
                !wanted.is_empty()
                    && (plain(&gpu.name).starts_with(&wanted) || short(gpu).starts_with(&wanted))
            })
            .collect();
        let exact: Vec<&&Gpu> = beginning.iter().filter(|gpu| short(gpu) == wanted).collect();
        match (exact.as_slice(), beginning.as_slice()) {
            ([one], _) => Ok(one),
            (_, [one]) => Ok(one),
            (_, []) => Err(format!(
                "there is no card {typed:?} in the catalogue; `oomph gpus` lists the cards, and says how to add one"
            )),
            (_, several) => {
                let names: Vec<&str> = several.iter().map(|gpu| gpu.name.as_str()).collect();
                Err(format!("{typed:?} may be {}; say which", names.join(", ")))
            }
        }
    }
}

/// Where a user's own cards are: `$OOMPH_GPUS`, or `oomph/gpus.toml` in the folder for settings.
pub fn user_file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("OOMPH_GPUS").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    Some(folders::settings()?.join("oomph").join("gpus.toml"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_cards_are_whole() {
        let catalogue = Catalogue::built_in();
        assert!(catalogue.gpus().len() > 80);
        for gpu in catalogue.gpus() {
            assert!(gpu.usable() > 3 << 30 && gpu.usable() < gpu.memory, "{}", gpu.name);
            assert!(
                gpu.sms > 0 && gpu.compute_capability.contains('.') && !gpu.source.is_empty(),
                "{}",
                gpu.name
            );
            assert_eq!(catalogue.find(&gpu.name).unwrap(), gpu);
        }
    }

    #[test]
    fn cards_are_found_as_people_type_them() {
        let catalogue = Catalogue::built_in();
        for (typed, name) in [
            ("T4", "t4"),
            ("tesla t4", "t4"),
            ("rtx3090", "rtx-3090"),
            ("3090", "rtx-3090"),
            ("4090", "rtx-4090"),
            ("NVIDIA GeForce RTX 4090", "rtx-4090"),
            ("h200", "h200"),
            ("A100 80GB", "a100-80gb"),
            ("H100", "h100-sxm"),
            ("H100 NVL", "h100-nvl"),
        ] {
            assert_eq!(catalogue.find(typed).unwrap().name, name, "{typed}");
        }
        assert!(catalogue.find("a100").unwrap_err().contains("a100-40gb, a100-80gb"));
        assert!(catalogue.find("voodoo2").unwrap_err().contains("oomph gpus"));
        assert!(catalogue.find("").is_err());
    }

    #[test]
    fn a_users_cards_win_and_are_checked() {
        let folder = std::env::temp_dir().join(format!("oomph-gpus-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("gpus.toml");
        let card = "[[gpu]]\nname = \"t4\"\ntitle = \"My T4\"\nmemory = 16000000000\ncompute_capability = \"7.5\"\nsms = 40\n";
        std::fs::write(&path, card).unwrap();
        let mut catalogue = Catalogue::built_in();
        catalogue.add_file(&path).unwrap();
        assert_eq!(catalogue.find("t4").unwrap().memory, 16_000_000_000);
        for bad in
            ["[[gpu]]\nname = 3", "nonsense", &card.replace("16000000000", "1"), &card.replace("sms", "smss")]
        {
            std::fs::write(&path, bad).unwrap();
            assert!(Catalogue::built_in().add_file(&path).is_err(), "{bad}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
