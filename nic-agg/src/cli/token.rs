//! `sumac-agg token`: the join token that workers, racks and parameter hosts get.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use sumac_control::{Credential, JoinToken};

use super::identity::{StateDir, TlsFiles};

const EXAMPLES: &str = "\
Examples:
  sumac-agg token > token                        for the daemons of this aggregator's workers
  sumac-agg token --secret-file train.secret     for a job with a secret of its own
  sumac-agg token --racks > racks.token          for the racks and parameter hosts below it
  sumac-agg token --racks --secret-file racks.token
        at a rack, with what the root printed: for the racks below this one";

/// Print the join token: the fingerprint of this aggregator's certificate, with a secret
///
/// Whoever has it can join jobs (with --racks: offer a rack or parameter host), so keep it as the secret that
/// it contains. Key and secrets are made at the first call, or by `sumac-agg serve`, in the state directory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    state: StateDir,
    /// The secret that `sumac-agg serve` was given for the job, or its racks; the state directory's own
    /// unless given
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The secret of racks and parameter hosts, not that of jobs
    #[arg(long)]
    racks: bool,
    #[command(flatten)]
    tls: TlsFiles,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    // The caller's own files, before those of the state directory.
    let given = args.secret_file.as_deref().map(Credential::from_file).transpose()?;
    let site = args.tls.is_given().then(|| args.tls.identity(&args.state)).transpose()?;
    let state = &args.state;
    state.act_as_owner()?;
    let identity = site.map_or_else(|| args.tls.identity(state), Ok)?;
    let secret = match (given, args.racks) {
        (Some(given), _) => given.secret,
        (None, false) => state.job_secret()?,
        (None, true) => state.rack_secret()?,
    };
    let token = JoinToken { fingerprint: identity.fingerprint(), secret };
    Ok(writeln!(io::stdout().lock(), "{token}")?)
}
