//! What the virtual GPU is: the card's memory, context and architecture, from `OOMPH_VIRTUAL_GPU`.
//!
//! The variable holds `key=value` pairs, apart by `;`: `memory` and `context` in bytes, `cc` as `major.minor`, `sms`,
//! `devices`, `name`, `cudnn` and `cublaslt` (the paths of the installed libraries); for those that are not installed, `cuda`,
//! `cudnn_version`, `cublas_version` and `nccl_version` say what PyTorch was built with, as the libraries would. What is missing is a card like an A100.

use std::sync::OnceLock;

static CARD: OnceLock<Card> = OnceLock::new();

/// The card, and what follows from its architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// As the driver calls it.
    pub name: String,
    /// Bytes, as `cudaMemGetInfo` says them.
    pub memory: u64,
    /// Bytes that a context takes.
    pub context: u64,
    /// Compute capability.
    pub major: i32,
    pub minor: i32,
    /// Streaming multiprocessors.
    pub sms: i32,
    /// How many of these cards there are.
    pub devices: i32,
    /// The installed cuDNN.
    pub cudnn: String,
    /// The installed cuBLASLt.
    pub cublas_lt: String,
    /// CUDA's version: 13000.
    pub cuda: i32,
    /// cuDNN's: 91900.
    pub cudnn_version: i64,
    /// That of cuBLAS: 130000.
    pub cublas_version: i64,
    /// NCCL's: 22809.
    pub nccl_version: i64,
}

/// What all cards of an architecture share, from the tables of the CUDA programming guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Shared memory that a block may ask for.
    pub shared_per_block_optin: i32,
    /// Shared memory of a multiprocessor.
    pub shared_per_sm: i32,
    /// Threads of a multiprocessor.
    pub threads_per_sm: i32,
    /// Blocks of a multiprocessor.
    pub blocks_per_sm: i32,
    /// Second-level cache of the usual card.
    pub l2: i32,
}

impl Default for Card {
    fn default() -> Self {
        Card {
            name: "NVIDIA A100-SXM4-80GB".into(),
            memory: 80 << 30,
            context: 400 << 20,
            major: 8,
            minor: 0,
            sms: 108,
            devices: 1,
            cudnn: String::new(),
            cublas_lt: String::new(),
            cuda: 13_000,
            cudnn_version: 91_900,
            cublas_version: 130_000,
            nccl_version: 22_809,
        }
    }
}

impl Card {
    /// The card of this process.
    pub fn get() -> &'static Card {
        CARD.get_or_init(|| Card::parse(&std::env::var("OOMPH_VIRTUAL_GPU").unwrap_or_default()))
    }

    /// Whether it was read.
    pub fn is_known() -> bool {
        CARD.get().is_some()
    }

    /// Reads a description.
    pub fn parse(text: &str) -> Card {
        let mut card = Card::default();
        for pair in text.split(';') {
            let Some((key, value)) = pair.split_once('=') else { continue };
            match key {
                "name" => card.name = value.to_string(),
                "memory" => card.memory = value.parse().unwrap_or(card.memory),
                "context" => card.context = value.parse().unwrap_or(card.context),
                "sms" => card.sms = value.parse().unwrap_or(card.sms),
                "devices" => card.devices = value.parse::<i32>().unwrap_or(1).clamp(1, 64),
                "cublaslt" => card.cublas_lt = value.to_string(),
                "cudnn" => card.cudnn = value.to_string(),
                "cuda" => card.cuda = value.parse().unwrap_or(card.cuda),
                "cudnn_version" => card.cudnn_version = value.parse().unwrap_or(card.cudnn_version),
                "cublas_version" => card.cublas_version = value.parse().unwrap_or(card.cublas_version),
                "nccl_version" => card.nccl_version = value.parse().unwrap_or(card.nccl_version),
                "cc" => {
                    if let Some((major, minor)) = value.split_once('.')
                        && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
                    {
                        (card.major, card.minor) = (major, minor);
                    }
                }
                _ => {}
            }
        }
        card
    }

    /// How many devices the program may see: `CUDA_VISIBLE_DEVICES`, which it may set itself, names them. There are as
    /// many as it names.
    pub fn visible(&self) -> i32 {
        match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(names) if names.trim().is_empty() || names.trim() == "-1" => 0,
            Ok(names) => i32::try_from(names.split(',').count()).unwrap_or(1).min(64),
            Err(_) => self.devices,
        }
    }

    /// How many there are for NVML, which does not look at what is visible.
    pub fn installed(&self) -> i32 {
        let named = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let highest = named.split(',').filter_map(|name| name.trim().parse::<i32>().ok()).max();
        highest.map_or(self.devices, |highest| self.devices.max(highest.saturating_add(1))).min(64)
    }

    /// Compute capability as one number: 90.
    pub fn capability(&self) -> i32 {
        self.major * 10 + self.minor
    }

    /// The kernels that PyTorch has for this card: binaries are built for some capabilities, and serve the later ones of
    /// the same generation. Libraries of kernels look for one that was built for just this number.
    pub fn built_for(&self) -> i32 {
        match self.capability() {
            87..=89 => 86,
            101..=109 => 100,
            121..=129 => 120,
            other => other,
        }
    }

    /// What follows from it.
    pub fn architecture(&self) -> Architecture {
        let (shared_per_block_optin, shared_per_sm, threads_per_sm, blocks_per_sm, l2) =
            match self.capability() {
                ..=69 => (49152, 98304, 2048, 32, 4 << 20),
                70..=74 => (98304, 98304, 2048, 32, 6 << 20),
                75..=79 => (65536, 65536, 1024, 16, 4 << 20),
                80 => (166_912, 167_936, 2048, 32, 40 << 20),
                81..=86 => (101_376, 102_400, 1536, 16, 6 << 20),
                87..=88 => (166_912, 167_936, 1536, 16, 4 << 20),
                89 => (101_376, 102_400, 1536, 24, 48 << 20),
                90..=99 => (232_448, 233_472, 2048, 32, 60 << 20),
                100..=119 => (232_448, 233_472, 2048, 32, 126 << 20),
                _ => (101_376, 102_400, 1536, 24, 96 << 20),
            };
        Architecture { shared_per_block_optin, shared_per_sm, threads_per_sm, blocks_per_sm, l2 }
    }

    /// What CUDA says of it by number: `cudaDeviceAttr` and `CUdevice_attribute` have the same numbers.
    pub fn attribute(&self, number: i32) -> i32 {
        let architecture = self.architecture();
        match number {
            1..=3 => 1024,
            4 => 64,
            5 => 0x7fff_ffff,
            6 | 7 => 65535,
            8 => 49152,
            9 => 65536,
            10 => 32,
            11 => 0x7fff_ffff,
            12 => 65536,
            13 => 1_500_000,
            14 => 512,
            16 => self.sms,
            18 | 26 => 0,
            15 | 19 | 31 | 41 => 1,
            33 => 1,
            36 => 3_000_000,
            37 => 5120,
            38 => architecture.l2,
            39 => architecture.threads_per_sm,
            40 => 3,
            75 => self.major,
            76 => self.minor,
            78..=80 => 1,
            81 => architecture.shared_per_sm,
            82 => 65536,
            83 => 1,
            86 | 88 | 89 | 91 => 1,
            95 => 1,
            97 => architecture.shared_per_block_optin,
            98 | 102 | 103 => 1,
            106 => architecture.blocks_per_sm,
            111 => 1024,
            115 => 1,
            120 => i32::from(self.major >= 9),
            // Multicast, fabric handles, host NUMA: one card in a plain machine has none.
            _ => 0,
        }
    }

    /// Blocks that fit on a multiprocessor by their threads alone: registers are not known.
    pub fn occupancy(&self, threads: i32) -> i32 {
        let architecture = self.architecture();
        (architecture.threads_per_sm / threads.max(1)).clamp(1, architecture.blocks_per_sm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_and_what_is_missing_stays() {
        let card = Card::parse("name=Tesla T4;memory=15637086208;cc=7.5;sms=40;nonsense;devices=2");
        assert_eq!((card.name.as_str(), card.memory, card.capability()), ("Tesla T4", 15_637_086_208, 75));
        assert_eq!((card.sms, card.devices, card.context), (40, 2, Card::default().context));
        assert_eq!(card.architecture().threads_per_sm, 1024);
        assert_eq!(card.built_for(), 75);
        assert_eq!(Card::parse("cc=8.9").built_for(), 86);
    }
}
