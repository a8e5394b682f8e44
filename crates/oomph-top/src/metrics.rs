//! A sample as OpenMetrics text, for Prometheus. `docs/reference/metrics.md` lists what is in it; a test holds both together.
//!
//! Only processes that have memory on a card, run under oomph or have their RAM recorded are exported: the others would each make a useless series.
//! Labels are numbers, users and short names; never command lines, which may hold secrets.

use crate::cards::{Card, Holder, cards};
use crate::freshness::said_ago;
use crate::ram::HeldBy;
use crate::rates::id;
use crate::rows::Choice;
use crate::taking::Taken;
use oomph_host::{InsideDevice, Missing, Process, Sample};
use oomph_words::harmless;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// As servers are to call it.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The sample as text; of processes, those that are chosen.
pub(crate) fn text(taken: impl Into<Taken>, choice: &Choice) -> String {
    let Taken { mut sample, ram } = taken.into();
    let now = sample.time;
    for process in &mut sample.processes {
        // What was reported too long ago is left out: of its devices, and of virtual cards.
        if said_ago(process, now).is_some()
            && let Some(inside) = &mut process.inside
        {
            inside.devices.clear();
        }
    }
    if sample.gpus.silent_for.is_some() {
        sample.gpus.cards.clear();
        sample.gpus.unreadable.clear();
    }
    let cards = cards(&sample);
    let mut registry = Registry::with_prefix("oomph");
    registry.register_collector(Box::new(Collected { sample, ram, cards, choice: choice.clone() }));
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Collected {
    sample: Sample,
    ram: HeldBy,
    cards: Vec<Card>,
    choice: Choice,
}

type Labels = Vec<(&'static str, String)>;

/// Writes families, each whole: what it is, then its values.
struct Writer<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Writer<'_> {
    /// Values that go up and down. None is said of what is not known.
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, Option<f64>)>,
    ) -> fmt::Result {
        let mut values = values.into_iter().filter_map(|(labels, value)| Some((labels, value?))).peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in values {
            if labels.is_empty() {
                metric.encode_gauge(&value)?;
            } else {
                metric.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn bytes(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, Option<u64>)>,
    ) -> fmt::Result {
        // Prometheus counts in floating point: whole numbers of bytes up to 8 PiB are exact.
        let exact = values.into_iter().map(|(labels, value)| (labels, value.map(|value| value as f64)));
        self.gauges(name, help, Some(Unit::Bytes), exact)
    }

    /// Values that only go up.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, Option<u64>)>,
    ) -> fmt::Result {
        let mut values = values.into_iter().filter_map(|(labels, value)| Some((labels, value?))).peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            if labels.is_empty() {
                metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            } else {
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            }
        }
        Ok(())
    }
}

fn of_card(card: &Card) -> Labels {
    let number = card.label.strip_prefix("GPU ").unwrap_or(&card.key).to_owned();
    vec![("card", number), ("uuid", card.uuid.clone().unwrap_or_default()), ("name", harmless(&card.name))]
}

fn of_process(process: &Process) -> Labels {
    vec![
        ("pid", process.pid.to_string()),
        ("user", harmless(&process.user)),
        ("name", harmless(&process.name)),
    ]
}

impl Collected {
    /// Those that are exported.
    fn processes(&self) -> impl Iterator<Item = &Process> {
        let is_of_interest = |process: &Process| {
            !process.on_gpus.is_empty() || process.inside.is_some() || self.ram.contains_key(&id(process))
        };
        self.sample
            .processes
            .iter()
            .filter(move |process| is_of_interest(process) && self.choice.has(process))
    }

    fn devices(&self) -> impl Iterator<Item = (Labels, &InsideDevice)> {
        let inside = self.processes().filter_map(|process| Some((process, process.inside.as_ref()?)));
        inside.flat_map(|(process, inside)| {
            inside.devices.iter().map(move |device| {
                let mut labels = of_process(process);
                labels.push(("device", device.device.to_string()));
                (labels, device)
            })
        })
    }

    /// A process that cannot be seen belongs to no user.
    fn is_asked_for(&self, holder: &Holder) -> bool {
        let Some(asked) = &self.choice.user else { return true };
        holder.who.as_ref().is_some_and(|(user, _)| user == asked)
    }

    /// Whether the driver answers, and which cards do: a card that is lost has no other metrics any more.
    fn of_driver(&self, writer: &mut Writer) -> fmt::Result {
        let gpus = &self.sample.gpus;
        let is_silent = gpus.silent_for.is_some();
        let is_up = !is_silent && matches!(gpus.missing, None | Some(Missing::NoCards));
        let up = [(Labels::new(), Some(f64::from(u8::from(is_up))))];
        writer.gauges("nvml_up", "Whether NVIDIA's management library answers", None, up)?;
        let age = (is_up || is_silent).then(|| gpus.silent_for.unwrap_or(0) as f64 / 1000.0);
        let help = "How long ago the driver answered; more than 0 if it does not any more";
        writer.gauges("nvml_age", help, Some(Unit::Seconds), [(Labels::new(), age)])?;
        let readable = gpus.cards.iter().map(|card| (card.index, 1.0));
        let all = readable.chain(gpus.unreadable.iter().map(|card| (card.index, 0.0)));
        let all = all.map(|(index, value)| (vec![("card", index.to_string())], Some(value)));
        writer.gauges("gpu_readable", "Whether a card says what memory it has", None, all)
    }

    fn of_cards(&self, writer: &mut Writer) -> fmt::Result {
        let bytes =
            |value: fn(&Card) -> Option<u64>| self.cards.iter().map(move |card| (of_card(card), value(card)));
        writer.bytes("gpu_total", "All memory of a card", bytes(|card| Some(card.total)))?;
        writer.bytes("gpu_used", "Memory of a card that processes have", bytes(|card| Some(card.used)))?;
        writer.bytes(
            "gpu_reserved",
            "Memory that the driver and the firmware keep",
            bytes(|card| card.driver),
        )?;
        writer.bytes("gpu_free", "Memory of a card that is left", bytes(|card| Some(card.free)))?;
        writer.bytes(
            "gpu_unaccounted",
            "Memory that no process accounts for",
            bytes(|card| card.unaccounted),
        )?;
        let holders = self.cards.iter().flat_map(|card| {
            card.holders.iter().filter(|holder| self.is_asked_for(holder)).map(move |holder| {
                let (user, name) = holder.who.clone().unwrap_or_default();
                let mut labels = of_card(card);
                // The card's name would be a second label of that name.
                labels.truncate(2);
                labels.extend([
                    ("pid", holder.pid.to_string()),
                    ("user", harmless(&user)),
                    ("name", harmless(&name)),
                ]);
                (labels, holder.bytes)
            })
        });
        writer.bytes("process_gpu", "Memory of a process on a card, as the driver counts it", holders)?;
        let all =
            |value: fn(&Card) -> Option<f64>| self.cards.iter().map(move |card| (of_card(card), value(card)));
        let count = all(|card| Some(card.holders.len() as f64));
        writer.gauges("gpu_processes", "Processes with memory on a card", None, count)?;
        let busy = all(|card| card.busy.map(|busy| f64::from(busy) / 100.0));
        let ratio = Some(Unit::Other("ratio".to_owned()));
        writer.gauges("gpu_busy", "Share of the time in which a kernel ran, 0 to 1", ratio, busy)?;
        let temperature = all(|card| card.temperature.map(f64::from));
        writer.gauges("gpu_temperature", "Temperature of a card", Some(Unit::Celsius), temperature)?;
        let power = all(|card| card.power.map(|power| f64::from(power) / 1000.0));
        writer.gauges("gpu_power", "Power that a card takes", Some(Unit::Other("watts".to_owned())), power)
    }

    fn of_processes(&self, writer: &mut Writer) -> fmt::Result {
        let all =
            |value: fn(&Process) -> u64| self.processes().map(move |one| (of_process(one), Some(value(one))));
        writer.bytes("process_resident", "RAM of a process", all(|process| process.resident))?;
        writer.bytes("process_anonymous", "Of that: its own", all(|process| process.anonymous))?;
        writer.bytes("process_file", "Of that: pages of files", all(|process| process.file))?;
        writer.bytes("process_shared", "Of that: shared memory", all(|process| process.shared))?;
        writer.bytes("process_swapped", "Memory of a process in swap", all(|process| process.swapped))?;
        let asked =
            self.processes().map(|one| (of_process(one), self.ram.get(&id(one)).map(|held| held.asked)));
        writer.bytes("process_asked", "RAM that is asked for and not given back, by its recording", asked)?;
        let devices = |value: fn(&InsideDevice) -> Option<u64>| {
            self.devices().map(move |(labels, device)| (labels, value(device)))
        };
        writer.bytes(
            "process_allocated",
            "In tensors, as a process under oomph says",
            devices(|device| Some(device.allocated)),
        )?;
        writer.bytes(
            "process_reserved",
            "Taken from the driver by PyTorch",
            devices(|device| Some(device.reserved)),
        )?;
        writer.bytes("process_peak", "The most that was allocated", devices(|device| Some(device.peak)))?;
        writer.bytes(
            "process_last_peak",
            "The most that was allocated in the last step",
            devices(|device| device.last_peak),
        )?;
        let fresh = self.processes().filter(|one| said_ago(one, self.sample.time).is_none());
        let steps = fresh.filter_map(|one| Some((of_process(one), Some(one.inside.as_ref()?.steps))));
        writer.counters("process_steps", "Steps that ended", steps)
    }

    fn of_machine(&self, writer: &mut Writer) -> fmt::Result {
        let machine = &self.sample.machine;
        let mut one = |name, help, value: Option<u64>| writer.bytes(name, help, [(Labels::new(), value)]);
        let ram = machine.ram;
        one("ram_total", "All RAM", ram.map(|ram| ram.total))?;
        one(
            "ram_available",
            "RAM that new programs can have without swapping",
            ram.map(|ram| ram.available),
        )?;
        one("ram_free", "RAM that is used for nothing", ram.map(|ram| ram.free))?;
        one("ram_anonymous", "RAM of programs: heaps and stacks", ram.map(|ram| ram.anonymous))?;
        one("ram_file", "RAM with pages of files", ram.map(|ram| ram.file))?;
        one("ram_shared", "Shared memory and tmpfs", ram.map(|ram| ram.shared))?;
        one("ram_kernel", "RAM of the kernel", ram.map(|ram| ram.kernel))?;
        one("ram_other", "RAM in none of these: huge pages, and what drivers pin", ram.map(|ram| ram.other))?;
        one("ram_pinned", "RAM that cannot be moved out", ram.map(|ram| ram.pinned))?;
        one("swap_total", "All swap", machine.swap.map(|swap| swap.total))?;
        one("swap_used", "Swap that is used", machine.swap.map(|swap| swap.used))?;
        one("shm_total", "Size of /dev/shm", machine.shm.map(|shm| shm.total))?;
        one("shm_used", "What is in /dev/shm", machine.shm.map(|shm| shm.used))?;
        let group = machine.group.as_ref();
        one("cgroup_limit", "Limit of the control group", group.map(|group| group.limit))?;
        one("cgroup_used", "Charged to the control group", group.map(|group| group.used))?;
        one("cgroup_left", "Left before the kernel kills in it", group.map(|group| group.left))?;
        let kills = group.and_then(|group| group.kills);
        writer.counters(
            "cgroup_kills",
            "How often the kernel has killed in the control group",
            [(Labels::new(), kills)],
        )
    }
}

impl Collector for Collected {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut writer = Writer { encoder };
        self.of_driver(&mut writer)?;
        self.of_cards(&mut writer)?;
        self.of_processes(&mut writer)?;
        self.of_machine(&mut writer)?;
        let time = self.sample.time as f64 / 1000.0;
        let help = "When the sample was taken, since 1970";
        writer.gauges("sample_time", help, Some(Unit::Seconds), [(Labels::new(), Some(time))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staged;
    use oomph_host::Unreadable;
    use std::collections::BTreeSet;

    fn everything() -> String {
        let mut sample = staged::two_gpus();
        sample.machine = staged::group().machine;
        sample.processes[1].inside = staged::virtual_card().processes[1].inside.clone();
        sample.gpus.unreadable = vec![Unreadable { index: 2, name: None, why: "GPU is lost".to_owned() }];
        text(Taken { ram: staged::recorded_ram().ram, sample })
    }

    fn text(taken: impl Into<Taken>) -> String {
        super::text(taken, &Choice::default())
    }

    #[test]
    fn cards_processes_and_ram_are_exported() {
        let text = everything();
        for line in [
            "oomph_gpu_used_bytes{card=\"0\",uuid=\"GPU-0\",name=\"NVIDIA H200\"} 54760833024.0",
            "oomph_gpu_unaccounted_bytes{card=\"1\",uuid=\"GPU-1\",name=\"NVIDIA H200\"} 2147483648.0",
            "oomph_process_gpu_bytes{card=\"0\",uuid=\"GPU-0\",pid=\"200\",user=\"bob\",name=\"python\"} 32212254720.0",
            "oomph_process_gpu_bytes{card=\"1\",uuid=\"GPU-1\",pid=\"4000123\",user=\"\",name=\"\"} 2147483648.0",
            "oomph_process_steps_total{pid=\"100\",user=\"alice\",name=\"python\"} 1234",
            "oomph_process_allocated_bytes{pid=\"100\",user=\"alice\",name=\"python\",device=\"0\"} 5368709120.0",
            "oomph_gpu_busy_ratio{card=\"0\",uuid=\"GPU-0\",name=\"NVIDIA H200\"} 0.87",
            "oomph_nvml_up 1.0",
            "oomph_nvml_age_seconds 0.0",
            "oomph_gpu_readable{card=\"1\"} 1.0",
            "oomph_gpu_readable{card=\"2\"} 0.0",
            "oomph_gpu_unaccounted_bytes{card=\"0\",uuid=\"GPU-0\",name=\"NVIDIA H200\"} 0.0",
            "oomph_ram_total_bytes 34359738368.0",
            "oomph_cgroup_kills_total 2",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_process_whose_ram_is_recorded_needs_no_card_to_be_exported() {
        let text = text(staged::recorded_ram());
        let labels = "{pid=\"100\",user=\"alice\",name=\"python\"}";
        for line in [
            format!("oomph_process_asked_bytes{labels} 734003200.0"),
            format!("oomph_process_resident_bytes{labels} 2147483648.0"),
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}\n{text}");
        }
        assert!(!text.contains("pid=\"4000\"") && !text.contains("train"), "{text}");
    }

    #[test]
    fn command_lines_and_idle_processes_are_not_exported() {
        let text = everything();
        for secret in ["train.py", "--lr", "train.oomph", "pid=\"400\"", "pid=\"1\""] {
            assert!(!text.contains(secret), "{secret}\n{text}");
        }
    }

    #[test]
    fn unknown_values_are_not_exported() {
        let mut sample = staged::no_gpu();
        sample.machine.swap = None;
        let without = text(sample);
        for absent in ["oomph_gpu", "oomph_swap", "oomph_cgroup", "oomph_process"] {
            assert!(!without.contains(absent), "{absent}\n{without}");
        }
        assert!(without.contains("\noomph_nvml_up 0.0\n"));
        // Where the driver does not say what a process has, the rest is not known either.
        let mut sample = staged::two_gpus();
        sample.gpus.cards[1].processes[0].bytes = None;
        let of_one = text(sample);
        assert!(of_one.contains("\noomph_gpu_unaccounted_bytes{card=\"0\""));
        assert!(!of_one.contains("\noomph_gpu_unaccounted_bytes{card=\"1\""));
    }

    #[test]
    fn only_processes_of_a_user_are_exported_and_cards_all_the_same() {
        let choice = Choice { user: Some("bob".to_owned()), ..Choice::default() };
        let text = super::text(staged::two_gpus(), &choice);
        for pid in [100, 300, 4_000_123] {
            assert!(!text.contains(&format!("pid=\"{pid}\"")), "{pid}\n{text}");
        }
        assert_eq!(text.matches("pid=\"200\"").count(), 6, "{text}");
        assert!(text.contains("oomph_gpu_processes{card=\"0\",uuid=\"GPU-0\",name=\"NVIDIA H200\"} 3.0"));
    }

    #[test]
    fn what_was_reported_long_ago_is_not_exported() {
        let mut sample = staged::virtual_card();
        assert!(text(sample.clone()).contains("card=\"virtual:100:0\""));
        sample.time += 15_001;
        let text = text(sample);
        for absent in ["virtual", "device=", "oomph_process_steps"] {
            assert!(!text.contains(absent), "{absent}\n{text}");
        }
        // Its RAM is known all the same.
        assert!(text.contains("oomph_process_resident_bytes{pid=\"100\""));
    }

    #[test]
    fn of_a_driver_that_does_not_answer_only_the_silence_is_exported() {
        let mut sample = staged::two_gpus();
        sample.gpus.silent_for = Some(12_500);
        let text = text(sample);
        assert!(text.contains("\noomph_nvml_up 0.0\n") && text.contains("\noomph_nvml_age_seconds 12.5\n"));
        assert!(!text.contains("oomph_gpu_") && !text.contains("oomph_process_gpu"), "{text}");
        assert!(text.contains("oomph_process_resident_bytes{pid=\"100\""), "RAM is known all the same");
    }

    #[test]
    fn names_cannot_break_out_of_their_labels() {
        let mut sample = staged::two_gpus();
        sample.processes[1].user = "a\"} 1\noomph_x 2 \\".to_owned();
        sample.processes[2].name = "py\u{1b}[2J\u{9b}31m\u{202e}thon".to_owned();
        let text = text(sample);
        assert!(text.contains("user=\"a\\\"} 1\u{fffd}oomph_x 2 \\\\\""), "{text}");
        assert!(!text.contains("\noomph_x"));
        assert!(text.contains("name=\"py\u{fffd}[2J\u{fffd}31m\u{fffd}thon\""), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    }

    #[test]
    fn the_reference_has_every_metric_and_no_other() {
        let reference = include_str!("../../../docs/reference/metrics.md");
        let row = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
        let documented: BTreeSet<String> = reference.lines().filter_map(row).collect();
        let text = everything();
        let exported: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .map(|(name, kind)| if kind == "counter" { format!("{name}_total") } else { name.to_owned() })
            .collect();
        assert_eq!(documented, exported);
    }

    #[test]
    fn every_metric_of_the_dashboard_is_exported() {
        let dashboard = include_str!("../../../docs/grafana/oomph.json");
        let text = everything();
        let mut queried = 0;
        for rest in dashboard.split("oomph_").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            assert!(text.contains(&format!("\noomph_{name}")), "oomph_{name}");
            queried += 1;
        }
        assert!(queried > 15);
        // One dashboard shows all machines that are scraped.
        let legends: Vec<&str> = dashboard.lines().filter(|line| line.contains("legendFormat")).collect();
        assert!(
            legends.len() > 15 && legends.iter().all(|line| line.contains("{{instance}}")),
            "{legends:?}"
        );
    }
}
