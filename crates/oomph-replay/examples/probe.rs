//! probe
use oomph_replay::{allocator::*, conf::Conf, program::*, replayer::*, version::Version};
use oomph_trace::{History, read_path};
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let rows: Vec<serde_json::Value> = std::fs::read_to_string(std::env::args().nth(2).unwrap()).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let random = std::env::args().nth(3).is_some();
    let (mut good, mut all, mut within) = (0, 0, 0);
    for row in &rows {
        let case = row["case"].as_str().unwrap();
        let recording = read_path(format!("{dir}/{case}.pickle")).unwrap();
        let device = &recording.devices[0];
        let history = History::of(&recording, device);
        let v = Version::new(2, 11);
        let r = Replayer::new(&recording, device, &history, Some(v), None);
        let conf = row["conf"].as_str().unwrap();
        if random {
            let mem = Memory { total: row["total"].as_u64().unwrap(), free: 1 << 40, limit: row["fraction"].as_f64().map(|f| (f * row["total"].as_f64().unwrap()) as u64) };
            let rep = &oomph_replay::recorded::Reproduction::under(r.program(), &r.conf, mem, v);
            if rep.differences() == 0 && Some(rep.retries) == row["stats"]["num_alloc_retries"].as_u64() { good += 1; }
            let rep = &r.reproduction; if rep.differences() == 0 { within += 1; continue; }
            println!("{case} {conf:60} ev {} mm {} seg {} avoided {} ooms {} died {:?} first {:?} mem {:?}..{:?} frac {} retries {} truth {}", device.events.len(), rep.outcome.address_mismatches, rep.segments_differ, rep.outcome.ooms_avoided.len(), rep.outcome.ooms.len(), rep.outcome.died.map(|d| d.event), rep.outcome.first_mismatch, r.memory.at_least, r.memory.below, row["fraction"].as_f64().map_or(0.0, |f| f * row["total"].as_f64().unwrap()), rep.retries, row["stats"]["num_alloc_retries"]);
        } else {
            let truth = row["reserved"].as_u64().unwrap();
            let out = r.under(&Conf::parse(conf, v).unwrap(), Memory::UNLIMITED, &Options::default());
            let got = out.usage.reserved.peak;
            all += 1; good += u32::from(got == truth); within += u32::from((got as f64 / truth as f64 - 1.0).abs() < 0.01);
            if got != truth || !out.doubts.is_empty() {
                println!("{case:20} {conf:50} truth {truth:12} got {got:12} {:+.3}% alloc {} ties {} {:?}", 100.0 * (got as f64 / truth as f64 - 1.0), row["allocated"].as_u64().unwrap() as i64 - out.usage.allocated.peak as i64, out.usage.ties, out.doubts);
            }
        }
    }
    println!("{good} of {all}, within 1% {within}");
}
