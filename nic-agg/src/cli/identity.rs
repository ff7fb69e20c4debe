//! The aggregator's key, secrets and state directory on the command line.

use std::{env, fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use anyhow::Context as _;
use nix::unistd::{Gid, Uid, setegid, seteuid};
use sumac_control::{Identity, Secret, TlsError};

const JOB_SECRET_FILE: &str = "secret";
const RACK_SECRET_FILE: &str = "rack-secret";

/// The directory of what outlives the process.
#[derive(Clone, Debug, clap::Args)]
pub struct StateDir {
    /// Directory of the key, secrets and journal of running jobs; each control plane has its own [default:
    /// /var/lib/sumac-agg, or ~/.local/state/sumac-agg]
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY")]
    state_dir: Option<PathBuf>,
}

impl StateDir {
    /// The directory.
    pub fn path(&self) -> PathBuf {
        let home = || env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        // Not the effective user, which `act_as_owner` changes.
        self.state_dir.clone().unwrap_or_else(|| match Uid::current().is_root() {
            true => "/var/lib/sumac-agg".into(),
            false => home().join(".local/state/sumac-agg"),
        })
    }

    /// Lets root continue as the user that has the directory: what it makes there belongs to `sumac-agg
    /// serve`, which may run as that user.
    pub fn act_as_owner(&self) -> anyhow::Result<()> {
        let path = self.path();
        let Ok(directory) = fs::metadata(&path) else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(directory.uid()), Gid::from_raw(directory.gid()));
        if Uid::effective().is_root() && !uid.is_root() {
            let owner = || format!("cannot continue as user {uid}, the owner of {}", path.display());
            setegid(gid).and_then(|()| seteuid(uid)).with_context(owner)?;
        }
        Ok(())
    }

    /// The secret of jobs, made at the first call.
    pub fn job_secret(&self) -> Result<Secret, TlsError> {
        Secret::of_state_dir(&self.path(), JOB_SECRET_FILE)
    }

    /// The secret of racks and parameter hosts, made at the first call.
    pub fn rack_secret(&self) -> Result<Secret, TlsError> {
        Secret::of_state_dir(&self.path(), RACK_SECRET_FILE)
    }
}

/// The site's own certificate.
#[derive(Clone, Debug, clap::Args)]
pub struct TlsFiles {
    /// The site's certificate for this aggregator, PEM; without it a self-signed one is made in the state
    /// directory
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The authorities that sign the certificates of workers, racks and parameter hosts, PEM: those without
    /// one are refused
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// The certificate with its key.
    pub fn identity(&self, state: &StateDir) -> Result<Identity, TlsError> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Identity::from_files(cert, key, self.tls_client_ca.as_deref()),
            _ => Identity::of_state_dir(&state.path()),
        }
    }

    /// Whether the site has given one.
    pub fn is_given(&self) -> bool {
        self.tls_cert.is_some()
    }
}
