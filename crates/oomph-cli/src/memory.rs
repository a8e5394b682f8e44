//! What a what-if is about: how much memory there is (a size, a card from the catalogue, a limit), and whose rules are followed.

use crate::printer::Printer;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command};
use oomph_gpus::{Catalogue, Gpu};
use oomph_replay::allocator::Memory;
use oomph_report::replay::Typed;
use oomph_settings::version::Version;
use oomph_words::Size;
use std::ffi::OsStr;

#[derive(Args)]
pub(crate) struct MemoryArguments {
    /// Memory for PyTorch's segments: 15GiB, or 16GB of 10⁹ bytes (what the card has, less the CUDA context and other processes)
    #[arg(long, value_name = "SIZE", conflicts_with = "gpu")]
    pub(crate) memory: Option<Size>,
    /// A card from the catalogue: t4, rtx-4090, a100-80gb … (`oomph gpus` lists them)
    #[arg(long, value_name = "NAME", value_parser = GpuParser, hide_possible_values = true)]
    pub(crate) gpu: Option<Gpu>,
    /// What the process may take of it, as torch.cuda.set_per_process_memory_fraction sets it
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit: Option<Size>,
}

impl MemoryArguments {
    /// What was asked for, if anything was.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let limit = self.limit.map(|size| size.0);
        match (&self.memory, &self.gpu) {
            (Some(size), _) => Some(Memory { limit, ..Memory::of(size.0) }),
            (None, Some(gpu)) => Some(Memory { total: gpu.memory, free: gpu.usable(), limit }),
            (None, None) => limit.map(|limit| Memory { limit: Some(limit), ..Memory::UNLIMITED }),
        }
    }
}

impl MemoryArguments {
    /// The same arguments again, and those of the version, for saying what to type next.
    pub(crate) fn typed(&self, torch: Option<Version>) -> Typed {
        let mut arguments = String::new();
        if let Some(size) = self.memory {
            arguments += &format!(" --memory {}", size.0);
        }
        if let Some(gpu) = &self.gpu {
            arguments += &format!(" --gpu {}", gpu.name);
        }
        if let Some(size) = self.limit {
            arguments += &format!(" --limit {}", size.0);
        }
        if let Some(version) = torch {
            arguments += &format!(" --torch {version}");
        }
        Typed { card: self.gpu.as_ref().map(|gpu| gpu.name.clone()), arguments }
    }
}

/// The version whose rules are followed; says so if the one that was asked about is newer than what is known.
pub(crate) fn known_version(version: Option<Version>, printer: &mut Printer) -> Option<Version> {
    let (asked, newest) = (version?, Version::NEWEST);
    if asked > newest {
        printer
            .warning(&format!("the rules of PyTorch {asked} are not known; those of {newest} are followed"));
    }
    Some(asked.min(newest))
}

/// Takes any name that the catalogue finds; shells complete all that are in it.
#[derive(Clone)]
pub(crate) struct GpuParser;

impl TypedValueParser for GpuParser {
    type Value = Gpu;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, value: &OsStr) -> Result<Gpu, clap::Error> {
        let wrong = |message: String| {
            clap::Error::raw(ErrorKind::InvalidValue, format!("{message}\n")).with_cmd(command)
        };
        let catalogue = Catalogue::load().map_err(|error| wrong(error.to_string()))?;
        catalogue.find(&value.to_string_lossy()).cloned().map_err(wrong)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        // A catalogue that cannot be read is an error when a card is asked for.
        let catalogue = Catalogue::load().unwrap_or_else(|_| Catalogue::built_in());
        let names: Vec<PossibleValue> =
            catalogue.gpus().iter().map(|gpu| PossibleValue::new(gpu.name.clone())).collect();
        Some(Box::new(names.into_iter()))
    }
}
