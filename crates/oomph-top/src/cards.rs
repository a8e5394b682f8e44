//! Cards as they are shown: those of the driver, and the virtual ones that programs under oomph run on. Who is on each, and how
//! much of its memory no process accounts for.

use crate::freshness::said_ago;
use crate::words::lasting;
use oomph_host::{Gpu, Missing, Process, Sample};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Tells it from the others while it is there.
    pub(crate) key: String,
    /// As it is called in a line: `GPU 0`.
    pub(crate) label: String,
    pub(crate) name: String,
    pub(crate) uuid: Option<String>,
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// Kept by the driver.
    pub(crate) driver: Option<u64>,
    pub(crate) free: u64,
    pub(crate) busy: Option<u32>,
    pub(crate) temperature: Option<u32>,
    pub(crate) power: Option<u32>,
    pub(crate) mig: bool,
    pub(crate) exclusive: bool,
    /// How long ago this was said, in milliseconds, if that is too long to be true still.
    pub(crate) said_ago: Option<u64>,
    pub(crate) holders: Vec<Holder>,
    /// What no process accounts for, if that can be known; including the driver's share where that is not reported.
    pub(crate) unaccounted: Option<u64>,
}

impl Card {
    /// What no process accounts for, if that is worth a line.
    pub(crate) fn missed(&self) -> Option<u64> {
        let enough = if self.driver.is_some() { LEAST_SHOWN } else { LEAST_SHOWN_UNKNOWN };
        self.unaccounted.filter(|rest| *rest >= enough)
    }
}

/// Who has memory on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// User and short name; none if the process cannot be seen from here.
    pub(crate) who: Option<(String, String)>,
    pub(crate) bytes: Option<u64>,
    /// Dead, and not yet fetched by its parent.
    pub(crate) is_zombie: bool,
}

/// Less than this is the driver's own business: contexts of its services, tables that grow with the card.
const LEAST_SHOWN: u64 = 256 << 20;
/// The same where the driver's own share is not known apart: it is up to 1 GiB on cards of 80 GiB.
const LEAST_SHOWN_UNKNOWN: u64 = 1 << 30;
/// More virtual cards than this are of no use on a screen.
const MOST_VIRTUAL: usize = 16;

pub(crate) fn cards(sample: &Sample) -> Vec<Card> {
    let mut all: Vec<Card> = sample.gpus.cards.iter().map(|gpu| of_driver(gpu, sample)).collect();
    let inside = sample.processes.iter().filter_map(|process| Some((process, process.inside.as_ref()?)));
    let devices =
        inside.flat_map(|(process, inside)| inside.devices.iter().map(move |device| (process, device)));
    for (process, device) in devices.filter(|(_, device)| device.is_virtual).take(MOST_VIRTUAL) {
        let used = device.reserved;
        // Its size is reported later; until then, nothing is known to be free.
        let total = device.total.unwrap_or(used).max(used);
        let name = device.name.as_deref().unwrap_or("card");
        all.push(Card {
            key: format!("virtual:{}:{}", process.pid, device.device),
            label: format!("virt {}", device.device),
            name: format!("{name} (virtual)"),
            uuid: None,
            total,
            used,
            driver: None,
            free: total - used,
            busy: None,
            temperature: None,
            power: None,
            mig: false,
            exclusive: false,
            said_ago: said_ago(process, sample.time),
            holders: vec![holder(process.pid, Some(used), &sample.processes)],
            unaccounted: None,
        });
    }
    all
}

fn of_driver(gpu: &Gpu, sample: &Sample) -> Card {
    let mut holders: Vec<Holder> =
        gpu.processes.iter().map(|one| holder(one.pid, one.bytes, &sample.processes)).collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.pid));
    let name = if gpu.is_virtual { format!("{} (virtual)", gpu.name) } else { gpu.name.clone() };
    Card {
        key: gpu.uuid.clone().unwrap_or_else(|| format!("card:{}", gpu.index)),
        label: format!("GPU {}", gpu.index),
        name,
        uuid: gpu.uuid.clone(),
        total: gpu.total,
        used: gpu.used,
        driver: gpu.reserved,
        free: gpu.free,
        busy: gpu.busy,
        temperature: gpu.temperature,
        power: gpu.power,
        mig: gpu.mig,
        exclusive: gpu.exclusive,
        said_ago: sample.gpus.silent_for,
        unaccounted: unaccounted(gpu),
        holders,
    }
}

/// What is taken, less the driver's share and what processes have. Instances of MIG count otherwise, and where the driver does
/// not say what a process has, nothing can be said of the rest.
fn unaccounted(gpu: &Gpu) -> Option<u64> {
    if gpu.mig || gpu.is_virtual {
        return None;
    }
    let known: Option<u64> =
        gpu.processes.iter().try_fold(0u64, |sum, one| Some(sum.saturating_add(one.bytes?)));
    let taken = gpu.total.saturating_sub(gpu.free).saturating_sub(gpu.reserved.unwrap_or(0));
    Some(taken.saturating_sub(known?))
}

fn holder(pid: u32, bytes: Option<u64>, processes: &[Process]) -> Holder {
    let process = find(pid, processes);
    Holder {
        pid,
        who: process.map(|process| (process.user.clone(), process.name.clone())),
        bytes,
        is_zombie: process.is_some_and(|process| process.state == 'Z'),
    }
}

/// Samples have processes by their numbers.
pub(crate) fn find(pid: u32, processes: &[Process]) -> Option<&Process> {
    let at = processes.binary_search_by_key(&pid, |process| process.pid).ok();
    at.map(|at| &processes[at])
}

/// That the driver does not answer, for people, if it has ever answered.
pub(crate) fn silence(sample: &Sample) -> Option<String> {
    let silent_for = sample.gpus.silent_for.filter(|_| !sample.gpus.cards.is_empty())?;
    Some(format!(
        "the driver does not answer since {}: its cards are shown as they were then",
        lasting(silent_for)
    ))
}

/// Why there is no card, for people.
pub(crate) fn missing(sample: &Sample) -> String {
    if let Some(silent_for) = sample.gpus.silent_for {
        return format!("no GPU is known: the driver has not answered for {}", lasting(silent_for));
    }
    match &sample.gpus.missing {
        None | Some(Missing::NoLibrary) => "no GPU: there is no NVIDIA driver here".to_owned(),
        Some(Missing::DriverNotLoaded) => "no GPU: NVIDIA's driver is installed and not loaded".to_owned(),
        Some(Missing::VersionMismatch) => {
            "no GPU: NVIDIA's library and the kernel's driver are of two versions; restart the machine"
                .to_owned()
        }
        Some(Missing::NoPermission) => "no GPU: this user may not use NVIDIA's driver".to_owned(),
        Some(Missing::NoCards) => "no GPU: NVIDIA's driver sees none".to_owned(),
        Some(Missing::Other(words)) => format!("no GPU: NVIDIA's library says: {words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staged;

    #[test]
    fn memory_that_nobody_accounts_for_is_named() {
        let mut sample = staged::two_gpus();
        let all = cards(&sample);
        assert_eq!((all[0].unaccounted, all[0].missed()), (Some(0), None));
        // 4 GiB used, of which a process that is not in /proc has 2.
        assert_eq!((all[1].unaccounted, all[1].missed()), (Some(2 << 30), Some(2 << 30)));
        assert_eq!(all[1].holders[0].who, None);

        sample.gpus.cards[1].processes[0].bytes = None;
        assert_eq!(cards(&sample)[1].unaccounted, None, "the driver does not say what it has");
    }

    #[test]
    fn the_largest_stands_first_and_a_dead_one_is_known() {
        let mut sample = staged::two_gpus();
        sample.processes[1].state = 'Z';
        let holders = &cards(&sample)[0].holders;
        let listed: Vec<(u32, bool)> = holders.iter().map(|one| (one.pid, one.is_zombie)).collect();
        assert_eq!(listed, [(200, false), (100, true), (300, false)]);
    }

    #[test]
    fn virtual_cards_are_those_that_programs_tell_of() {
        let sample = staged::virtual_card();
        let all = cards(&sample);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].name, "Tesla T4 (virtual)");
        assert_eq!((all[0].used, all[0].total), (6 << 30, 15 << 30));
    }
}
