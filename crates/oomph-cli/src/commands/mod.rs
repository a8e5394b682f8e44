//! Verbs, one a file.
//!
//! A verb's file holds what it takes (`Arguments`, whose doc comments are its help) and what it does (`run`, without
//! logic of its own). To add a verb, add a file and a line below.

use crate::Outcome;
use crate::printer::Printer;
use clap::Subcommand;

macro_rules! verbs {
    ($($(#[$about:meta])* $verb:ident in $module:ident),* $(,)?) => {
        $(mod $module;)*

        #[derive(Subcommand)]
        pub(crate) enum Command {
            $($(#[$about])* $verb($module::Arguments)),*
        }

        impl Command {
            pub(crate) fn run(&self, printer: &mut Printer) -> anyhow::Result<Outcome> {
                match self {
                    $(Self::$verb(arguments) => $module::run(arguments, printer)),*
                }
            }
        }
    };
}

verbs! {
    Run in run,
    Predict in predict,
    Fit in fit,
    Data in data,
    Top in top,
    Doctor in doctor,
    Explain in explain,
    Report in report,
    Diff in diff,
    Check in check,
    Replay in replay,
    Tune in tune,
    Gpus in gpus,
    Rule in rule,
    Convert in convert,
    Completions in completions,
    Man in man,
    #[command(hide = true)]
    OnVirtualGpu in on_virtual_gpu,
}
