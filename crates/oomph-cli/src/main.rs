//! The command `oomph`, as a program.

fn main() -> std::process::ExitCode {
    oomph_cli::command(std::env::args_os()).into()
}
