//! `sumac reference`: the sources of `docs/reference/`, from the code.

use std::process::ExitCode;

use serde_json::{Value, json};
use sumac_api::Code;
use sumac_daemon::config::Config;

use crate::exit;

/// Prints the keys of the daemon's configuration (a JSON schema) and the codes of errors as one JSON object.
#[derive(Debug, clap::Args)]
#[command(hide = true, after_help = "Example:\n  sumac reference > reference.json")]
pub struct Args {}

pub fn run(_: &Args) -> anyhow::Result<ExitCode> {
    let errors: Vec<Value> = Code::ALL
        .iter()
        .map(|code| json!({ "code": code, "meaning": code.meaning(), "remedy": code.remedy() }))
        .collect();
    exit::print_json(&json!({ "configuration": Config::schema(), "errors": errors }))?;
    Ok(ExitCode::SUCCESS)
}
