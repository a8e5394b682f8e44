use oomph_replay::{conf::Conf, program::*, recorded::*, version::Version};
use oomph_trace::{History, read_path};
fn main() {
    for path in std::env::args().skip(1) {
        let recording = read_path(&path).unwrap();
        for device in &recording.devices {
            let history = History::of(&recording, device);
            let conf = Conf::of_recording(&recording.settings);
            let program = Program::of(device, &history, &conf);
            let mem = RecordedMemory::of(&program, &conf);
            print!("{} ", path.rsplit('/').next().unwrap());
            for v in [Version::new(2, 11), Version::NEWEST, Version::new(2, 12)] {
                let r = Reproduction::under(&program, &conf, mem.memory, v);
                print!(" | {} mm {} first {:?} seg {} ooms {} avoided {} died {:?} unknown {} retries {}", v, r.outcome.address_mismatches, r.outcome.first_mismatch, r.segments_differ, r.outcome.ooms.len(), r.outcome.ooms_avoided.len(), r.outcome.died.map(|d| d.event), r.outcome.unknown_frees, r.retries);
                if v.minor == 11 { print!(" before {} mem {:?}..{:?}", device.events.len(), mem.at_least, mem.below); }
            }
            println!();
        }
    }
}
