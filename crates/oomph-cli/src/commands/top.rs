//! `oomph top`: GPUs and RAM, live.

use crate::Outcome;
use crate::printer::{Printer, width};
use clap::Args;
use oomph_top::{Address, Exporter, Interval, Options, Sort, json_lines, once, user, watch};
use std::io::IsTerminal;

/// Watch GPUs, RAM and who has them
///
/// Shows each card with what is used, reserved by the driver and free, and who is on it; RAM by what it is used for, with the
/// limit of the control group; and processes with their memory on cards and in RAM. Programs that run under oomph (`oomph run`,
/// `oomph.record`) also show what is allocated, their step, the peak of the last step, and the lines that hold most. Programs
/// whose RAM is recorded (`oomph run --ram`, `oomph.record(ram=True)`) show what they have asked for of it, and the lines that
/// hold most of that, with or without a GPU. Without a GPU it shows the machine; programs on a virtual card show that.
///
/// Keys: arrows choose a process, Enter shows its details, s sorts, t makes a tree, / filters, g leaves those on GPUs, K ends a
/// process after asking, ? lists all keys, q ends.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  oomph top\n  oomph top --once                        # a page of text; also where there is no terminal\n  oomph top --json-lines --count 60 > minute.jsonl\n  oomph top --prometheus 127.0.0.1:9400   # metrics at http://127.0.0.1:9400/metrics\n\nOOMPH_NVML names another file for NVIDIA's management library."
)]
pub(crate) struct Arguments {
    /// Print one page of text, and end
    #[arg(long, conflicts_with_all = ["json_lines", "prometheus"])]
    pub(crate) once: bool,
    /// Print a line of JSON a sample
    #[arg(long, conflicts_with = "prometheus")]
    pub(crate) json_lines: bool,
    /// End after so many lines of JSON
    #[arg(long, value_name = "N", requires = "json_lines")]
    pub(crate) count: Option<u64>,
    /// Put command lines and names of recordings into the lines of JSON: they may hold secrets
    #[arg(long, requires = "json_lines")]
    pub(crate) commands: bool,
    /// Serve metrics to Prometheus; a port alone is loopback's
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["interval", "sort", "ascii"])]
    pub(crate) prometheus: Option<Address>,
    /// Let --prometheus listen where other machines can reach it: they see users and names of processes
    #[arg(long, requires = "prometheus")]
    pub(crate) listen_anywhere: bool,
    /// Time between two samples: 1s, 500ms, 2m
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Interval,
    /// Processes of this user only: a name or a number
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Processes on GPUs only
    #[arg(long)]
    pub(crate) on_gpus: bool,
    /// Sort by this column: gpu, allocated, reserved, step, peak, asked, ram, anonymous, file, shared, swap, pinned, cpu, pid, user, command
    #[arg(long, value_name = "COLUMN", default_value = "gpu")]
    pub(crate) sort: Sort,
    /// Draw with ASCII only
    #[arg(long)]
    pub(crate) ascii: bool,
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let user = match arguments.user.as_deref().map(user).transpose() {
        Ok(user) => user,
        Err(why) => {
            printer.error(&why);
            printer.hint(
                "names are those of /etc/passwd and of the directory that getent asks; a user whom neither names is shown by number: give that",
            );
            return Ok(Outcome::Failed);
        }
    };
    if let Some(address) = arguments.prometheus {
        // It exports only processes on GPUs anyway.
        return export(address, user, arguments.listen_anywhere, printer);
    }
    let options = Options {
        interval: arguments.interval,
        ascii: arguments.ascii,
        color: printer.has_color(),
        user,
        on_gpus: arguments.on_gpus,
        sort: arguments.sort,
    };
    if arguments.json_lines {
        json_lines(&options, arguments.count, arguments.commands, |line| printer.line(line))?;
    } else if arguments.once || !std::io::stdout().is_terminal() {
        printer.data(&once(&options, width()))?;
    } else if let Some(signal) = watch(&options)? {
        return Ok(Outcome::Interrupted(signal));
    }
    Ok(Outcome::Fine)
}

fn export(
    address: Address,
    user: Option<String>,
    anywhere: bool,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    if !address.is_loopback() && !anywhere {
        printer.error(&format!(
            "{address} can be reached from other machines, which would see users and names of processes"
        ));
        printer.hint("listen at 127.0.0.1, or say --listen-anywhere");
        return Ok(Outcome::Failed);
    }
    let exporter =
        Exporter::bind(address, user, anywhere).map_err(|error| anyhow::anyhow!("{address}: {error}"))?;
    printer.note(&format!("oomph: metrics are at {}; Ctrl-C ends", exporter.url()?));
    Ok(exporter.run().map_or(Outcome::Fine, Outcome::Interrupted))
}
