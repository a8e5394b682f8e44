//! Sets the stage and runs a command on it: `stage PYTHON GPU COMMAND...`, for working on `oomph-cuda`.

use oomph_gpus::Catalogue;
use oomph_predict::installed::Installed;
use oomph_predict::stage::Stage;
use std::process::{Command, ExitCode};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [python, gpu, command, rest @ ..] = arguments.as_slice() else {
        return Err("stage PYTHON GPU COMMAND...".into());
    };
    let installed = Installed::find(Some(python.as_ref()))?;
    let stage = Stage::set(&installed)?;
    let catalogue = Catalogue::load()?;
    let environment = stage.environment(catalogue.find(gpu)?, 2);
    let status = Command::new(command).args(rest).envs(environment).status()?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
