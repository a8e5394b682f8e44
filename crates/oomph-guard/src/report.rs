//! What happened, as JSON: on demand, and when the process ends.

use crate::GRANULE;
use crate::driver::Calls;
use crate::guard;
use crate::overflow::Totals;
use crate::overflow::trial::Trial;
use crate::settings::Settings;
use std::fmt::Write;

/// The report. Bytes are whole numbers; each device that was used has an entry.
pub fn json() -> String {
    let settings = Settings::get();
    let mut out = String::from("{\"schema_version\":1");
    let _ = write!(out, ",\"process\":{}", std::process::id());
    let budget = settings.budget.map_or("null".to_owned(), |budget| budget.to_string());
    let _ = write!(out, ",\"budget\":{budget},\"overflow\":{},\"devices\":[", settings.overflow);
    guard::look(|state| {
        for (device, account) in state.ledger.accounts().iter().enumerate() {
            let comma = if device > 0 { "," } else { "" };
            let _ = write!(
                out,
                "{comma}{{\"device\":{device},\"used\":{},\"peak\":{},\"context\":{},\"context_from\":\"{}\",\
                     \"managed\":{},\"managed_peak\":{},\"refused\":{},\"refused_largest\":{}",
                account.used(),
                account.peak,
                account.context,
                account.context_from,
                account.managed,
                account.managed_peak,
                account.refused,
                account.refused_largest,
            );
            let overflow = state.overflows.get(&device);
            let totals = overflow.map(|overflow| overflow.totals()).unwrap_or_default();
            let now = overflow.map_or(0, |overflow| overflow.on_host()) as u64 * GRANULE;
            let calls = overflow.map(|overflow| overflow.driver().calls).unwrap_or_default();
            write_policies(&mut out, overflow.map(|overflow| overflow.trial()));
            write_overflow(&mut out, &totals, now, state.pinned_peak + state.lent_peak, calls);
            out.push('}');
        }
    });
    out.push_str("]}");
    out
}

/// The way to use the host that is in use, and how long a step took with each that was tried.
fn write_policies(out: &mut String, trial: Option<&Trial>) {
    let Some(trial) = trial else { return };
    let _ = write!(out, ",\"policy\":\"{}\",\"policies\":[", trial.policy().name);
    for (index, (name, time)) in trial.times().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let milliseconds = time.as_secs_f64() * 1e3;
        let _ = write!(out, "{comma}{{\"name\":\"{name}\",\"milliseconds\":{milliseconds:.2}}}");
    }
    out.push(']');
}

fn write_overflow(out: &mut String, totals: &Totals, now: u64, beside: u64, calls: Calls) {
    let _ = write!(
        out,
        ",\"host\":{{\"now\":{now},\"peak\":{},\"seconds\":{:.3},\"moved_out\":{},\"moved_in\":{},\"moves\":{},\
         \"moving_seconds\":{:.3},\"maps\":{},\"unmaps\":{},\"allows\":{},\"copies\":{},\"failures\":{},\"served\":[",
        totals.host_peak as u64 * GRANULE + beside,
        totals.on_host.as_secs_f64(),
        totals.moved_out * GRANULE,
        totals.moved_in * GRANULE,
        totals.moves,
        totals.moving.as_secs_f64(),
        calls.maps,
        calls.unmaps,
        calls.allows,
        calls.copies,
        totals.failures,
    );
    for (index, served) in totals.served.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(
            out,
            "{comma}{{\"address\":{},\"size\":{},\"seconds\":{:.6},\"moved\":{}}}",
            served.address, served.size, served.seconds, served.moved
        );
    }
    out.push_str("]}");
}

/// Writes the report where the settings say, if memory was used at all: programs start others that use none.
pub fn write() {
    if let Some(path) = &Settings::get().report
        && guard::look(|_| ()).is_some()
    {
        let path = path.replace("%p", &std::process::id().to_string());
        let _ = std::fs::write(path, json());
    }
}
