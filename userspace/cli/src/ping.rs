//! `sumac ping`: whether the daemon lives.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use sumac_api::{Channel, Hello, Inbound, MAX_MESSAGE, Request, VERSION};

use crate::{exit, options::Socket};

/// Checks that the daemon answers, for health probes. Nothing else fails it: neither the number of jobs nor a
/// refusal.
#[derive(Debug, clap::Args)]
#[command(after_help = exit::HELP)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,
}

/// Waits for the answer to `hello`. A daemon that refuses the connection, by a limit or another version,
/// lives.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = &args.socket.path;
    let channel = Channel::connect(path)?;
    let hello = Hello { version: VERSION, client: "sumac ping".to_owned() };
    let request = Request { id: 1, command: sumac_api::Command::Hello(hello) }.encode()?;
    // After a refusal the connection is closed, with the reason in it.
    let _ = channel.send(&request, &[]);
    let mut buffer = vec![0; MAX_MESSAGE];
    let asked = || format!("the daemon at {} does not answer", path.display());
    match channel.receive(&mut buffer).with_context(asked)? {
        Inbound::Message(_) => Ok(ExitCode::SUCCESS),
        Inbound::End => bail!("{}: it has closed the connection", asked()),
    }
}
