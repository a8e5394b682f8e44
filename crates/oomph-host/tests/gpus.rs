//! Cards and drivers, right and wrong ones, reported by a fake management library that a test configures.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::nvml::FakeNvml;
use oomph_host::{GpuProcess, Gpus, Missing, Sampler, Use};
use std::path::Path;
use std::time::{Duration, Instant};

fn sampler(library: &Path) -> Sampler {
    // A folder without files: cards alone.
    Sampler::at("/nonexistent").with_nvml(library)
}

fn gpus(settings: &str) -> Gpus {
    sampler(&FakeNvml::new(settings).library).sample().gpus
}

#[test]
fn two_cards_are_reported_with_their_processes() {
    let found = gpus(
        "FAKE_NVML_PROCESSES=0,100,8589934592;0,101,-;1,100,1048576,g;0,102,5,b;0,103,7,g\nFAKE_NVML_MIG=1\n\
         FAKE_NVML_EXCLUSIVE=0\n",
    );
    assert_eq!(found.missing, None);
    assert_eq!(found.driver.as_deref(), Some("580.95.05"));
    assert_eq!(found.cuda, Some((13, 0)));
    assert!(found.unreadable.is_empty());
    let [first, second] = &found.cards[..] else { panic!("{found:?}") };
    assert_eq!((first.index, first.name.as_str()), (0, "NVIDIA H200"));
    assert_eq!(first.uuid.as_deref(), Some("GPU-fa4e0000-0000-0000-0000-000000000000"));
    assert_eq!(
        (first.total, first.used, first.reserved),
        (150_754_820_096, 21_474_836_480, Some(654_311_424))
    );
    assert_eq!(first.free, first.total - first.used - 654_311_424);
    assert_eq!((first.busy, first.temperature, first.power), (Some(90), Some(60), Some(300_000)));
    assert_eq!((first.capability, first.mig, first.exclusive), (Some((9, 0)), false, true));
    assert!(!first.is_virtual);
    let process = |pid, bytes, kind| GpuProcess { pid, bytes, kind };
    assert_eq!(
        first.processes,
        [
            process(100, Some(8_589_934_592), Use::Compute),
            process(101, None, Use::Compute),
            process(102, Some(5), Use::Both),
            process(103, Some(7), Use::Graphics),
        ]
    );
    assert_eq!((second.index, second.total, second.mig, second.exclusive), (1, 25_757_220_864, true, false));
    assert_eq!(second.capability, Some((8, 9)));
    assert_eq!(second.processes, [process(100, Some(1_048_576), Use::Graphics)]);
}

#[test]
fn a_wrong_driver_is_recognised_by_its_error() {
    for (error, expected) in [
        (18, Missing::VersionMismatch),
        (9, Missing::DriverNotLoaded),
        (4, Missing::NoPermission),
        (999, Missing::Other("an internal driver error occurred".to_owned())),
    ] {
        let found = gpus(&format!("FAKE_NVML_ERROR={error}\n"));
        assert_eq!(found.missing, Some(expected), "{error}");
        assert!(found.cards.is_empty() && found.driver.is_none() && found.cuda.is_none());
    }
    assert_eq!(gpus("FAKE_NVML_CARDS=\n").missing, Some(Missing::NoCards));
    assert_eq!(sampler(Path::new("/nonexistent/lib.so")).sample().gpus.missing, Some(Missing::NoLibrary));
    let broken = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(broken.path(), "no library").unwrap();
    let found = sampler(broken.path()).sample().gpus.missing;
    assert!(matches!(found, Some(Missing::Other(_))), "{found:?}");
}

#[test]
fn what_the_driver_refuses_is_absent() {
    let refused = [
        "UUID",
        "UtilizationRates",
        "Temperature",
        "PowerUsage",
        "CudaComputeCapability",
        "MigMode",
        "ComputeMode",
        "ComputeRunningProcesses_v3",
        "Name",
    ];
    let names = refused.map(|name| format!("nvmlDeviceGet{name}")).join(",");
    let found = gpus(&format!(
        "FAKE_NVML_CARDS=1000,300,100\nFAKE_NVML_PROCESSES=0,7,5;0,8,6,g\n\
         FAKE_NVML_REFUSE={names},nvmlSystemGetDriverVersion,nvmlSystemGetCudaDriverVersion_v2\n"
    ));
    assert_eq!((found.missing, found.driver, found.cuda), (None, None, None));
    let card = &found.cards[0];
    assert_eq!((card.total, card.used, card.reserved, card.free), (1000, 300, Some(100), 600));
    assert_eq!((card.name.as_str(), &card.uuid, card.busy, card.temperature), ("GPU 0", &None, None, None));
    assert_eq!((card.power, card.capability, card.mig, card.exclusive), (None, None, false, false));
    assert_eq!(card.processes.len(), 1, "the other list is read all the same");
}

#[test]
fn cards_that_do_not_tell_their_memory_are_named() {
    let found = gpus("FAKE_NVML_CARDS=lost;1000,300,100;2000,5,-,NVIDIA Tesla K80\n");
    assert_eq!(found.missing, None);
    assert_eq!(found.cards.iter().map(|card| card.index).collect::<Vec<_>>(), [1]);
    let [lost, old] = &found.unreadable[..] else { panic!("{found:?}") };
    assert_eq!((lost.index, &lost.name), (0, &None));
    assert!(lost.why.contains("fell off the bus"), "{}", lost.why);
    assert_eq!((old.index, old.name.as_deref()), (2, Some("NVIDIA Tesla K80")));
}

#[test]
fn what_changes_while_the_library_is_open_is_seen() {
    let fake = FakeNvml::new("FAKE_NVML_CARDS=1000,300,100\n");
    let mut sampler = sampler(&fake.library);
    assert_eq!(sampler.sample().gpus.cards[0].used, 300);
    fake.set("FAKE_NVML_CARDS=1000,400,100\nFAKE_NVML_PROCESSES=0,7,5\n");
    let card = &sampler.sample().gpus.cards[0];
    assert_eq!((card.used, card.free, card.processes.len()), (400, 500, 1));
    fake.set("FAKE_NVML_ERROR=15\n");
    let missing = sampler.sample().gpus.missing;
    assert!(matches!(&missing, Some(Missing::Other(why)) if why.contains("fell off the bus")), "{missing:?}");
}

#[test]
fn a_driver_that_hangs_is_waited_for_once_and_its_last_answer_reported() {
    let fake = FakeNvml::new("FAKE_NVML_CARDS=1000,300,100\n");
    let mut sampler = sampler(&fake.library);
    assert_eq!(sampler.sample().gpus.silent_for, None);
    fake.set("FAKE_NVML_CARDS=1000,300,100\nFAKE_NVML_HANG=nvmlDeviceGetMemoryInfo_v2\n");
    let silent = sampler.sample().gpus;
    assert_eq!((silent.cards[0].used, silent.missing), (300, None));
    assert!(silent.silent_for.unwrap() >= 2000, "{:?}", silent.silent_for);
    let began = Instant::now();
    for _ in 0..10 {
        assert!(sampler.sample().gpus.silent_for >= silent.silent_for);
    }
    assert!(began.elapsed() < Duration::from_secs(1), "no later call waits: {:?}", began.elapsed());
    fake.set("FAKE_NVML_CARDS=1000,400,100\n");
    let began = Instant::now();
    let answered = loop {
        let gpus = sampler.sample().gpus;
        if gpus.silent_for.is_none() {
            break gpus;
        }
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(answered.cards[0].used, 400);
}

#[test]
fn a_driver_that_never_answers_is_said_to_be_silent() {
    let fake = FakeNvml::new("FAKE_NVML_HANG=nvmlDeviceGetCount_v2\n");
    let mut sampler = sampler(&fake.library).hurried();
    let began = Instant::now();
    let gpus = sampler.sample().gpus;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(gpus.silent_for.unwrap() >= 2000 && gpus.cards.is_empty());
    assert_eq!(gpus.missing, Some(Missing::Other("no word in 2 s".to_owned())));
    fake.set("");
}

#[test]
fn a_driver_that_wakes_up_slowly_is_waited_for() {
    let fake = FakeNvml::new("FAKE_NVML_HANG=nvmlInit_v2\n");
    let mut sampler = sampler(&fake.library);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2500));
            fake.set("");
        });
        let gpus = sampler.sample().gpus;
        assert_eq!((gpus.silent_for, gpus.cards.len()), (None, 2));
    });
}
