//! GPUs, as the driver's command `nvidia-smi` has them: for a static build of oomph, which can load no library.
//!
//! Says less than the library, and rounds memory to MiB. What it does not say is absent.

use crate::gpus::{Gpu, GpuProcess, Gpus, Missing, Unreadable, Use};
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
const CARD: &str = "index,uuid,name,memory.total,memory.used,memory.reserved,memory.free,utilization.gpu,temperature.gpu,power.draw,compute_cap,mig.mode.current,compute_mode,driver_version";
const PROCESS: &str = "gpu_uuid,pid,used_memory";

/// Asks the command that is on the `PATH`.
pub(crate) fn read() -> Gpus {
    let absent = |missing| Gpus { missing: Some(missing), ..Gpus::default() };
    let cards = match ask("--query-gpu", CARD) {
        Ok(cards) => cards,
        Err(missing) => return absent(missing),
    };
    understood(&cards, &ask("--query-compute-apps", PROCESS).unwrap_or_default())
}

fn ask(what: &str, columns: &str) -> Result<String, Missing> {
    let output = Command::new("nvidia-smi")
        .args([&format!("{what}={columns}"), "--format=csv,noheader,nounits"])
        .stdin(Stdio::null())
        .output()
        .map_err(|_| Missing::NoLibrary)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(match text.trim() {
        // It says so on stdout, in a paragraph.
        said if said.contains("couldn't communicate with the NVIDIA driver") => Missing::DriverNotLoaded,
        said if said.contains("version mismatch") => Missing::VersionMismatch,
        said if said.contains("No devices were found") => Missing::NoCards,
        said => Missing::Other(said.lines().next().unwrap_or("nvidia-smi failed").to_owned()),
    })
}

fn understood(cards: &str, processes: &str) -> Gpus {
    let mut gpus = Gpus::default();
    for line in cards.lines() {
        let words: Vec<&str> = line.split(", ").map(str::trim).collect();
        // A name may have a comma in it: what follows it is counted from the end.
        let [
            index,
            uuid,
            ..,
            total,
            used,
            reserved,
            free,
            busy,
            temperature,
            power,
            capability,
            mig,
            mode,
            driver,
        ] = words[..]
        else {
            continue;
        };
        let Ok(index) = index.parse() else { continue };
        let name = words[2..words.len() - 11].join(", ");
        gpus.driver = Some(driver.to_owned());
        let (Some(total), Some(used), Some(free)) = (mib(total), mib(used), mib(free)) else {
            gpus.unreadable.push(Unreadable { index, name: Some(name), why: used.to_owned() });
            continue;
        };
        gpus.cards.push(Gpu {
            index,
            uuid: Some(uuid.to_owned()),
            name,
            total,
            used,
            reserved: mib(reserved),
            free,
            busy: busy.parse().ok(),
            temperature: temperature.parse().ok(),
            power: power.parse::<f64>().ok().map(|watts| (watts * 1000.0) as u32),
            capability: capability
                .split_once('.')
                .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))),
            mig: mig == "Enabled",
            exclusive: mode.starts_with("Exclusive"),
            is_virtual: false,
            processes: of_card(processes, uuid),
        });
    }
    if gpus.cards.is_empty() && gpus.unreadable.is_empty() {
        gpus.missing = Some(Missing::NoCards);
    }
    gpus
}

fn of_card(processes: &str, uuid: &str) -> Vec<GpuProcess> {
    let of = |line: &str| {
        let (card, rest) = line.split_once(", ")?;
        let (pid, bytes) = rest.split_once(", ")?;
        let process =
            GpuProcess { pid: pid.trim().parse().ok()?, bytes: mib(bytes.trim()), kind: Use::Compute };
        (card == uuid).then_some(process)
    };
    processes.lines().filter_map(of).collect()
}

/// `[N/A]` and the like are no numbers.
fn mib(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARDS: &str = "\
0, GPU-aaaa, NVIDIA H200, 143771, 1024, 644, 142102, 37, 31, 76.53, 9.0, Disabled, Default, 580.159.03
1, GPU-bbbb, Odd, with a comma, 16384, 0, [N/A], 16384, [N/A], 40, [N/A], 7.5, [N/A], Exclusive_Process, 580.159.03
2, GPU-cccc, NVIDIA GB10, [N/A], [N/A], [N/A], [N/A], 3, 40, 5.00, 12.1, [N/A], Default, 580.159.03
";

    #[test]
    fn cards_and_processes_are_read() {
        let gpus = understood(CARDS, "GPU-aaaa, 4711, 512\nGPU-bbbb, 12, [N/A]\nGPU-aaaa, 4712, 256\n");
        assert_eq!((gpus.driver.as_deref(), gpus.missing, gpus.cards.len()), (Some("580.159.03"), None, 2));
        let first = &gpus.cards[0];
        assert_eq!((first.index, first.name.as_str(), first.total), (0, "NVIDIA H200", 143_771 * MIB));
        assert_eq!((first.used, first.reserved, first.free), (1024 * MIB, Some(644 * MIB), 142_102 * MIB));
        assert_eq!((first.busy, first.temperature, first.power), (Some(37), Some(31), Some(76_530)));
        assert_eq!((first.capability, first.mig, first.exclusive), (Some((9, 0)), false, false));
        let process = |pid, bytes| GpuProcess { pid, bytes, kind: Use::Compute };
        assert_eq!(first.processes, [process(4711, Some(512 * MIB)), process(4712, Some(256 * MIB))]);
        let second = &gpus.cards[1];
        assert_eq!((second.name.as_str(), second.reserved, second.busy), ("Odd, with a comma", None, None));
        assert_eq!((second.power, second.exclusive), (None, true));
        assert_eq!(second.processes, [process(12, None)]);
        let shared = Unreadable { index: 2, name: Some("NVIDIA GB10".into()), why: "[N/A]".into() };
        assert_eq!(gpus.unreadable, [shared]);
    }

    #[test]
    fn what_is_no_card_is_none() {
        for text in [
            "",
            "\n",
            "No devices were found\n",
            "0, GPU\n",
            "x, GPU-aaaa, N, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n",
        ] {
            assert_eq!(understood(text, "").missing, Some(Missing::NoCards), "{text:?}");
        }
    }
}
