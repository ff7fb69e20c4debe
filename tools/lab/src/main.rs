//! `sumac-lab`: labs of network namespaces on one machine, and what runs in them.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
