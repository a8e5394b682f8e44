//! GPUs, as the driver's management library (NVML) has them.
//!
//! The library is loaded when it is first asked for. Where there is none, or it refuses, it is tried again every ten seconds: a
//! driver can be loaded, and a container can get its devices, while `oomph top` runs. What the driver does not say is absent.

use serde::Serialize;
use std::path::PathBuf;

/// The cards, or why there are none.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Gpus {
    /// Version of the driver.
    pub driver: Option<String>,
    /// The newest CUDA that it can do, as major and minor.
    pub cuda: Option<(u32, u32)>,
    /// Why there are no cards.
    pub missing: Option<Missing>,
    /// By their numbers.
    pub cards: Vec<Gpu>,
    /// Cards that are there and do not say what memory they have.
    pub unreadable: Vec<Unreadable>,
    /// The driver does not answer: all of this is so many milliseconds old; or, if it never answered, it is asked for so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_for: Option<u64>,
}

/// A card whose memory the driver does not report: it has fallen off the bus, this user may not, it shares RAM (Jetson, GB10), or
/// the driver is older than 510.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// As NVML counts.
    pub index: u32,
    /// As its maker calls it.
    pub name: Option<String>,
    /// In NVML's words.
    pub why: String,
}

/// Why no card can be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "why", content = "detail")]
pub enum Missing {
    /// There is no driver: its library was not found.
    NoLibrary,
    /// The library is there, the driver is not loaded.
    DriverNotLoaded,
    /// The library and the kernel's driver are of two versions: an update without a restart.
    VersionMismatch,
    /// This user may not.
    NoPermission,
    /// The driver is there and sees no card.
    NoCards,
    /// Something else, in NVML's words.
    Other(String),
}

/// A card.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Gpu {
    /// As NVML counts.
    pub index: u32,
    /// Of the card.
    pub uuid: Option<String>,
    /// As its maker calls it.
    pub name: String,
    /// All of its memory.
    pub total: u64,
    /// By all processes; what is `reserved` is not in it.
    pub used: u64,
    /// Kept by the driver and the firmware; no process can have it.
    pub reserved: Option<u64>,
    /// What is left: the total without the two above.
    pub free: u64,
    /// Per cent of the time in which a kernel ran.
    pub busy: Option<u32>,
    /// In °C.
    pub temperature: Option<u32>,
    /// In milliwatts.
    pub power: Option<u32>,
    /// Compute capability.
    pub capability: Option<(u32, u32)>,
    /// Whether it is cut into MIG instances.
    pub mig: bool,
    /// Whether only one process may use it.
    pub exclusive: bool,
    /// Whether it is oomph's virtual card.
    pub is_virtual: bool,
    /// Who has memory on it.
    pub processes: Vec<GpuProcess>,
}

/// A process on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuProcess {
    /// Its pid on the host of the driver: in a container there may be no such process.
    pub pid: u32,
    /// Its memory; none where the driver does not say (WSL, some containers).
    pub bytes: Option<u64>,
    /// What for.
    pub kind: Use,
}

/// What a process uses a card for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// CUDA.
    Compute,
    /// A screen.
    Graphics,
    /// Both.
    Both,
}

/// Where the library is if it is not among the system's: WSL, Colab's terminals, nodes of GKE.
const PLACES: [&str; 4] = [
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/usr/lib64-nvidia/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
];

/// Keeps NVML open.
pub(crate) struct Reader {
    library: Option<PathBuf>,
    state: nvml::State,
}

impl Reader {
    /// With the driver's library, or with another.
    pub(crate) fn new(library: Option<PathBuf>) -> Self {
        Self { library, state: nvml::State::default() }
    }

    pub(crate) fn read(&mut self) -> Gpus {
        match &self.library {
            Some(library) => self.state.read(&[library.as_path()], nvml::AGAIN),
            None => self.state.read(&PLACES.map(std::path::Path::new), nvml::AGAIN),
        }
    }
}

mod nvml {
    use super::{Gpu, GpuProcess, Gpus, Missing, Unreadable, Use};
    use nvml_wrapper::enum_wrappers::device::{ComputeMode, TemperatureSensor};
    use nvml_wrapper::enums::device::UsedGpuMemory;
    use nvml_wrapper::error::NvmlError;
    use nvml_wrapper::struct_wrappers::device::ProcessInfo;
    use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::{Duration, Instant};

    /// Opening costs some hundred look-ups of names, and some hundred milliseconds where a driver has to wake up.
    pub(super) const AGAIN: Duration = Duration::from_secs(10);
    /// How the number of oomph's virtual card begins: `cuDeviceGetUuid` of the virtual GPU says `oomph-virtual-g` and the index.
    const VIRTUAL: &str = "GPU-6f6f6d70-682d-7669-7274-75616c2d67";

    #[derive(Default)]
    pub(super) enum State {
        #[default]
        Unknown,
        Open(Box<Nvml>),
        Refused(Instant, Missing),
    }

    impl State {
        pub(super) fn read(&mut self, places: &[&Path], again: Duration) -> Gpus {
            let is_due = match self {
                Self::Unknown => true,
                Self::Open(_) => false,
                Self::Refused(when, _) => when.elapsed() >= again,
            };
            if is_due {
                *self = match open(places) {
                    Ok(nvml) => Self::Open(Box::new(nvml)),
                    Err(missing) => Self::Refused(Instant::now(), missing),
                };
            }
            let missing = match self {
                Self::Open(nvml) => match cards(nvml) {
                    Ok(gpus) => return gpus,
                    Err(error) => missing(error),
                },
                Self::Refused(_, missing) => return absent(missing.clone()),
                Self::Unknown => return absent(Missing::NoLibrary),
            };
            // It was open and refuses now: the driver was unloaded or replaced.
            *self = Self::Refused(Instant::now(), missing.clone());
            absent(missing)
        }
    }

    fn absent(missing: Missing) -> Gpus {
        Gpus { missing: Some(missing), ..Gpus::default() }
    }

    /// The first library that is there; the first that is there and refuses says why.
    fn open(places: &[&Path]) -> Result<Nvml, Missing> {
        for place in places {
            match Nvml::builder().lib_path(place.as_os_str()).init().map_err(missing) {
                Err(Missing::NoLibrary) => {}
                opened => return opened,
            }
        }
        Err(Missing::NoLibrary)
    }

    fn missing(error: NvmlError) -> Missing {
        match error {
            NvmlError::DriverNotLoaded => Missing::DriverNotLoaded,
            NvmlError::LibRmVersionMismatch => Missing::VersionMismatch,
            NvmlError::NoPermission => Missing::NoPermission,
            NvmlError::LibloadingError(error) => {
                // Of the dynamic loader there are words alone.
                let words = error.to_string();
                if words.contains("No such file") { Missing::NoLibrary } else { Missing::Other(words) }
            }
            other => Missing::Other(other.to_string()),
        }
    }

    fn cards(nvml: &Nvml) -> Result<Gpus, NvmlError> {
        let count = nvml.device_count()?;
        let mut gpus = Gpus {
            driver: nvml.sys_driver_version().ok(),
            cuda: nvml.sys_cuda_driver_version().ok().and_then(version),
            missing: (count == 0).then_some(Missing::NoCards),
            ..Gpus::default()
        };
        for index in 0..count {
            let device = match nvml.device_by_index(index) {
                Ok(device) => device,
                Err(error) => {
                    gpus.unreadable.push(Unreadable { index, name: None, why: error.to_string() });
                    continue;
                }
            };
            match card(index, &device) {
                Ok(card) => gpus.cards.push(card),
                Err(error) => {
                    gpus.unreadable.push(Unreadable {
                        index,
                        name: device.name().ok(),
                        why: error.to_string(),
                    });
                }
            }
        }
        Ok(gpus)
    }

    fn version(number: i32) -> Option<(u32, u32)> {
        let major = u32::try_from(cuda_driver_version_major(number)).ok()?;
        Some((major, u32::try_from(cuda_driver_version_minor(number)).ok()?))
    }

    fn card(index: u32, device: &Device) -> Result<Gpu, NvmlError> {
        let memory = device.memory_info()?;
        let uuid = device.uuid().ok();
        let capability = device.cuda_compute_capability().ok();
        Ok(Gpu {
            index,
            is_virtual: uuid.as_deref().is_some_and(|uuid| uuid.starts_with(VIRTUAL)),
            uuid,
            name: device.name().unwrap_or_else(|_| format!("GPU {index}")),
            total: memory.total,
            used: memory.used,
            reserved: Some(memory.reserved),
            free: memory.free,
            busy: device.utilization_rates().ok().map(|rates| rates.gpu),
            temperature: device.temperature(TemperatureSensor::Gpu).ok(),
            power: device.power_usage().ok(),
            capability: capability
                .and_then(|found| Some((u32::try_from(found.major).ok()?, u32::try_from(found.minor).ok()?))),
            mig: device.mig_mode().is_ok_and(|mode| mode.current == 1),
            exclusive: matches!(
                device.compute_mode(),
                Ok(ComputeMode::ExclusiveThread | ComputeMode::ExclusiveProcess)
            ),
            processes: processes(device, memory.total),
        })
    }

    fn processes(device: &Device, total: u64) -> Vec<GpuProcess> {
        let mut found: BTreeMap<u32, GpuProcess> = BTreeMap::new();
        let lists = [
            (Use::Compute, device.running_compute_processes()),
            // Clients of a server that shares the card (MPS).
            (Use::Compute, device.mps_running_compute_processes()),
            (Use::Graphics, device.running_graphics_processes()),
        ];
        for (kind, list) in lists {
            for (pid, bytes) in by_number(list.unwrap_or_default(), total) {
                let process = found.entry(pid).or_insert(GpuProcess { pid, bytes, kind });
                // Each list has all memory of the process.
                process.bytes = process.bytes.max(bytes);
                if process.kind != kind {
                    process.kind = Use::Both;
                }
            }
        }
        found.into_values().collect()
    }

    /// Within a list, a process occurs once for each instance of a card that is cut.
    fn by_number(list: Vec<ProcessInfo>, total: u64) -> BTreeMap<u32, Option<u64>> {
        let mut found: BTreeMap<u32, Option<u64>> = BTreeMap::new();
        for process in list {
            let bytes = match process.used_gpu_memory {
                // No process has more than the card: some drivers say "not available" with other large numbers.
                UsedGpuMemory::Used(bytes) if bytes <= total => Some(bytes),
                UsedGpuMemory::Used(_) | UsedGpuMemory::Unavailable => None,
            };
            let sum = found.entry(process.pid).or_default();
            *sum = match (*sum, bytes) {
                (Some(before), Some(bytes)) => Some(before.saturating_add(bytes)),
                (before, bytes) => before.or(bytes),
            };
        }
        found
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn process(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
            ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
        }

        #[test]
        fn instances_of_a_process_are_added_up() {
            let used = UsedGpuMemory::Used;
            let list = vec![
                process(1, used(10)),
                process(2, UsedGpuMemory::Unavailable),
                process(1, used(20)),
                process(2, used(5)),
                process(3, used(101)),
            ];
            let expected = BTreeMap::from([(1, Some(30)), (2, Some(5)), (3, None)]);
            assert_eq!(by_number(list, 100), expected);
        }

        #[test]
        fn a_driver_that_comes_later_is_found() {
            let fake = crate::fake_nvml::FakeNvml::new("FAKE_NVML_ERROR=9\n");
            let mut state = State::default();
            let mut look = |again| {
                let found = state
                    .read(&[Path::new("/nonexistent/library.so"), &fake.library], Duration::from_secs(again));
                (found.missing, found.cards.len())
            };
            assert_eq!(look(3600), (Some(Missing::DriverNotLoaded), 0));
            fake.set("");
            assert_eq!(look(3600), (Some(Missing::DriverNotLoaded), 0), "not at once");
            assert_eq!(look(0), (None, 2));
            fake.set("FAKE_NVML_ERROR=18\n");
            assert_eq!(look(3600), (Some(Missing::VersionMismatch), 0), "it was updated while it was open");
            fake.set("");
            assert_eq!(look(0), (None, 2));
        }

        #[test]
        fn the_virtual_card_is_recognised_by_its_uuid() {
            let said: String = b"oomph-virtual-g".iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(VIRTUAL.trim_start_matches("GPU-").replace('-', ""), said);
        }
    }
}
