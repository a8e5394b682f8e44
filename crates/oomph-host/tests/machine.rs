//! The machine that this runs on: what is said of it is what the kernel says.
#![allow(clippy::unwrap_used, clippy::panic)]

use oomph_host::{Process, Sample, Sampler};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn of(sample: &Sample, pid: u32) -> Option<&Process> {
    sample.processes.iter().find(|process| process.pid == pid)
}

/// The number after a name in a file of the kernel, in bytes.
fn kernel(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{path} {name}"));
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Takes samples until one is as it should be.
fn until<T>(sampler: &mut Sampler, what: &str, mut check: impl FnMut(&Sample) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = check(&sampler.sample()) {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn holder(folder: &Path) -> Child {
    let program = folder.join("hold s) R (x");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/holds.c");
    let built =
        Command::new("gcc").args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]).status();
    assert!(built.unwrap().success());
    let mut child = Command::new(&program)
        .arg(folder.join("file"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn memory_of_a_process_is_split_as_it_is() {
    // Not among temporary files: where those are in RAM, a mapped one is shared memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut child = holder(folder.path());
    let status = format!("/proc/{}/status", child.id());
    // It touches a page more on its way to where it waits.
    let (time, process) = until(&mut Sampler::new(), "the kernel says another size", |sample| {
        let found = of(sample, child.id()).filter(|process| process.resident == kernel(&status, "VmRSS:"));
        found.map(|process| (sample.time, process.clone()))
    });
    let mebibytes = |bytes: u64| bytes >> 20;
    assert_eq!((mebibytes(process.anonymous), mebibytes(process.shared)), (64, 32));
    assert!((16..20).contains(&mebibytes(process.file)), "{}", process.file);
    assert_eq!(process.pinned, 32 << 10);
    assert_eq!(process.resident, process.anonymous + process.shared + process.file);

    assert_eq!(process.anonymous, kernel(&status, "RssAnon:"));
    assert_eq!(process.shared, kernel(&status, "RssShmem:"));
    assert_eq!(process.file, kernel(&status, "RssFile:"));
    assert_eq!(process.resident, kernel(&status, "VmRSS:"));
    assert_eq!(process.swapped, kernel(&status, "VmSwap:"));

    assert_eq!(process.name, "hold s) R (x");
    assert_eq!(process.parent, std::process::id());
    assert!(process.command.ends_with("/file"), "{}", process.command);
    let ps = |what: &str| {
        let asked =
            Command::new("ps").args(["-o", &format!("{what}="), "-p", &child.id().to_string()]).output();
        asked.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Where there is a ps.
    if let Some(user) = ps("euser:64").filter(|user| !user.is_empty()) {
        assert_eq!(process.user, user);
    }
    let age = Duration::from_millis(time.abs_diff(process.started));
    assert!(age < Duration::from_secs(60), "it has just been started: {age:?}");
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn ram_is_what_the_kernel_says() {
    let mut sampler = Sampler::new();
    let names = ["MemFree:", "AnonPages:", "Shmem:", "MemAvailable:", "Unevictable:"];
    let all = || names.map(|name| kernel("/proc/meminfo", name));
    // Others run too: what lies between two looks at a number is right.
    until(&mut sampler, "every number lies between what the kernel said before and after", {
        let mut before = all();
        move |sample| {
            let after = all();
            let ram = sample.machine.ram.unwrap();
            let said = [ram.free, ram.anonymous, ram.shared, ram.available, ram.pinned];
            let lies = |index: usize| {
                let (low, high) = (before[index].min(after[index]), before[index].max(after[index]));
                (low..=high).contains(&said[index])
            };
            let is_right = (0..names.len()).all(lies);
            before = all();
            is_right.then_some(())
        }
    });
    let ram = sampler.sample().machine.ram.unwrap();
    assert_eq!(ram.total, kernel("/proc/meminfo", "MemTotal:"));
    let sum = ram.free + ram.anonymous + ram.file + ram.shared + ram.kernel + ram.other;
    let swapped = kernel("/proc/meminfo", "SwapCached:");
    assert!(sum <= ram.total && sum + swapped + (64 << 20) >= ram.total, "{sum} of {}: {ram:?}", ram.total);
}

#[test]
fn shared_memory_is_as_df_has_it() {
    let shm = Sampler::new().sample().machine.shm;
    let df = Command::new("df").args(["-B1", "--output=target,size", "/dev/shm"]).output();
    let text = df.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let size = text.lines().last().and_then(|line| line.trim().strip_prefix("/dev/shm"));
    let size = size.and_then(|size| size.trim().parse::<u64>().ok());
    assert_eq!(shm.map(|shm| shm.total), size);
    if let Some(shm) = shm {
        assert!(shm.used <= shm.total);
    }
}

#[test]
fn processors_are_those_that_may_be_used() {
    let processors = Sampler::new().sample().machine.processors.unwrap();
    let said = std::thread::available_parallelism().unwrap().get() as f64;
    // The standard library rounds a quota down, and takes one at least.
    assert_eq!(processors.floor().max(1.0), said);
}

#[test]
fn processor_time_is_counted_and_kernel_threads_are_not_there() {
    let mut sampler = Sampler::new();
    let me = std::process::id();
    let before = until(&mut sampler, "it is there", |sample| Some(of(sample, me)?.processor));
    let mut sum = 0u64;
    until(&mut sampler, "it works", |sample| {
        (0..10_000_000u64).for_each(|number| sum = std::hint::black_box(sum ^ number));
        (of(sample, me)?.processor >= before + 50).then_some(())
    });
    let sample = sampler.sample();
    assert!(sample.processes.iter().all(|process| process.pid != 2 || process.name != "kthreadd"));
    assert!(sample.processes.windows(2).all(|pair| pair[0].pid < pair[1].pid), "sorted, each once");
}

#[test]
fn a_dead_process_that_holds_memory_of_a_card_is_seen() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    let fake = crate::nvml::FakeNvml::new(&format!("FAKE_NVML_PROCESSES=1,{pid},1000;0,{pid},-\n"));
    let mut sampler = Sampler::new().with_nvml(&fake.library);
    let dead = until(&mut sampler, "it ends", |sample| of(sample, pid).filter(|it| it.state == 'Z').cloned());
    assert_eq!(dead.on_gpus, [(0, None), (1, Some(1000))]);
    assert_eq!(dead.resident, 0);
    assert!(!dead.command.is_empty());
    child.wait().unwrap();
    until(&mut sampler, "it is gone", |sample| of(sample, pid).is_none().then_some(()));
}

#[test]
fn a_process_that_calls_exec_shows_what_it_runs_now() {
    // The name stays: the kernel's data about the program show it.
    let script = "read line; exec sh -c 'read line; : second' sh-again";
    let mut child =
        Command::new("sh").args(["-c", script, "sh-first"]).stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let mut sampler = Sampler::new();
    let command = |sample: &Sample| of(sample, pid).map(|process| process.command.clone());
    until(&mut sampler, "it began", |sample| command(sample).filter(|command| command.ends_with("sh-first")));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    let cmdline = format!("/proc/{pid}/cmdline");
    while !std::fs::read_to_string(&cmdline).unwrap().ends_with("sh-again\0") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(command(&sampler.sample()).unwrap().ends_with("second sh-again"), "in the very next sample");
    drop(stdin);
    child.wait().unwrap();
}
