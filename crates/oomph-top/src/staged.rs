//! Samples for tests.

use crate::confirm::Named;
use crate::place::Place;
use crate::ram::{Held, HeldLine};
use crate::taking::Taken;
use oomph_host::{
    Gpu, GpuProcess, Gpus, Group, Inside, InsideDevice, Line, Machine, Missing, Process, Ram, Sample, Shm,
    Swap, Use,
};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// 22:13:20 UTC.
pub(crate) const TIME: u64 = 1_700_000_000_000;

pub(crate) fn process(pid: u32, parent: u32, user: &str, command: &str, resident: u64) -> Process {
    let name = command.split(' ').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    Process {
        pid,
        parent,
        user: user.to_owned(),
        name: name.to_owned(),
        command: command.to_owned(),
        state: 'S',
        started: TIME - 3_700_000,
        start_ticks: u64::from(pid),
        processor: 1000,
        resident,
        anonymous: resident / 2,
        file: resident / 4,
        shared: resident - resident / 2 - resident / 4,
        swapped: 0,
        pinned: 0,
        on_gpus: Vec::new(),
        container: None,
        inside: None,
        recordings: Vec::new(),
    }
}

pub(crate) fn place() -> Place {
    Place { name: "box, container".to_owned(), hides_others: false }
}

/// A process that is held.
pub(crate) fn named(command: &str) -> Named {
    Named { name: process(0, 0, "", command, 0).name, command: command.to_owned() }
}

fn gpu(index: u32, name: &str, total: u64, used: u64, processes: &[(u32, Option<u64>)]) -> Gpu {
    let reserved = 512 * MIB;
    let on = |(pid, bytes): &(u32, Option<u64>)| GpuProcess { pid: *pid, bytes: *bytes, kind: Use::Compute };
    Gpu {
        index,
        uuid: Some(format!("GPU-{index}")),
        name: name.to_owned(),
        total,
        used,
        reserved: Some(reserved),
        free: total - used - reserved,
        busy: Some(87 - 80 * index),
        temperature: Some(61),
        power: Some(412_300),
        capability: Some((9, 0)),
        mig: false,
        exclusive: false,
        is_virtual: false,
        processes: processes.iter().map(on).collect(),
    }
}

fn machine() -> Machine {
    Machine {
        ram: Some(Ram {
            total: 32 * GIB,
            available: 18 * GIB,
            free: 6 * GIB,
            anonymous: 11 * GIB,
            file: 10 * GIB,
            shared: 3 * GIB,
            kernel: GIB,
            other: GIB,
            pinned: 64 * MIB,
        }),
        swap: Some(Swap { total: 2 * GIB, used: 512 * MIB }),
        shm: Some(Shm { total: 16 * GIB, used: 3 * GIB }),
        group: None,
        processors: Some(8.0),
    }
}

/// A machine without a card.
pub(crate) fn no_gpu() -> Sample {
    Sample {
        time: TIME,
        machine: machine(),
        gpus: Gpus { missing: Some(Missing::NoLibrary), ..Gpus::default() },
        processes: vec![
            process(1, 0, "root", "/sbin/init", 8 * MIB),
            process(100, 1, "alice", "python train.py --lr 0.1", 2 * GIB),
            process(4000, 100, "alice", "python train.py --lr 0.1", GIB),
        ],
    }
}

/// Two cards, three users, a process of another container, and memory that no process accounts for.
pub(crate) fn two_gpus() -> Sample {
    let mut sample = no_gpu();
    sample.processes = vec![
        process(1, 0, "root", "/sbin/init", 8 * MIB),
        process(100, 1, "alice", "python train.py --lr 0.1", 2 * GIB),
        process(200, 1, "bob", "/opt/venv/bin/python serve.py --model llama", 3 * GIB),
        process(300, 1, "carol", "jupyter-kernel -f kernel.json", GIB),
        process(400, 100, "alice", "pt_data_worker loader 0", 4 * GIB),
    ];
    sample.processes[1].on_gpus = vec![(0, Some(20 * GIB))];
    sample.processes[2].on_gpus = vec![(0, Some(30 * GIB))];
    sample.processes[3].on_gpus = vec![(0, Some(GIB))];
    sample.gpus = Gpus {
        driver: Some("580.95.05".to_owned()),
        cuda: Some((13, 0)),
        missing: None,
        unreadable: Vec::new(),
        silent_for: None,
        cards: vec![
            gpu(
                0,
                "NVIDIA H200",
                140 * GIB,
                51 * GIB,
                &[(100, Some(20 * GIB)), (200, Some(30 * GIB)), (300, Some(GIB))],
            ),
            gpu(1, "NVIDIA H200", 140 * GIB, 4 * GIB, &[(4_000_123, Some(2 * GIB))]),
        ],
    };
    sample
}

/// A program under oomph on a virtual card.
pub(crate) fn virtual_card() -> Sample {
    let mut sample = no_gpu();
    sample.processes[1].inside = Some(Inside {
        pid: 100,
        start_ticks: 100,
        time: TIME,
        steps: 1234,
        devices: vec![InsideDevice {
            device: 0,
            name: Some("Tesla T4".to_owned()),
            total: Some(15 * GIB),
            is_virtual: true,
            allocated: 5 * GIB,
            reserved: 6 * GIB,
            peak: 8 * GIB,
            last_peak: Some(7 * GIB),
            lines: vec![
                Line { place: "model.py:42 forward".to_owned(), bytes: 3 * GIB },
                Line { place: "train.py:17 main".to_owned(), bytes: GIB },
            ],
        }],
        recording: Some("/home/alice/train.oomph".to_owned()),
    });
    sample
}

/// A program whose RAM is recorded, on a machine without a card.
pub(crate) fn recorded_ram() -> Taken {
    let line = |place: &str, bytes, error| HeldLine { place: place.to_owned(), bytes, error };
    let held = Held {
        asked: 700 * MIB,
        error: 2 * MIB,
        lines: vec![line("train.py:7 load", 600 * MIB, 0), line("train.py:12 main", 64 * MIB, 2 * MIB)],
        recording: "/home/alice/train-ram.oomph".to_owned(),
    };
    Taken { sample: no_gpu(), ram: [((100, 100), held)].into() }
}

/// A container with a limit, in which the kernel has killed.
pub(crate) fn group() -> Sample {
    let mut sample = no_gpu();
    sample.machine.group = Some(Group {
        version: 2,
        limit: 8 * GIB,
        used: 7 * GIB,
        anonymous: Some(5 * GIB),
        file: Some(2 * GIB),
        shared: Some(512 * MIB),
        left: 3 * GIB,
        swap_left: 0,
        slows: false,
        kills: Some(2),
    });
    sample
}
