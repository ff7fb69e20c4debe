//! Connections to the host's daemon, shared by jobs up to the daemon's limit.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sumac_client::{Client, ClientError, JobOptions, Limits, Opening};

use crate::error::PluginError;

/// The daemon's socket unless its configuration has another.
const DEFAULT_SOCKET: &str = "/run/sumac/sumac.sock";
/// The time for all ranks of a collective job to join: the call that waits blocks.
pub(crate) const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Jobs on a connection, at most.
const JOBS_PER_CONNECTION: u32 = 8;
/// Operations that a job has outstanding: of 16 messages with two each.
const OPERATIONS_PER_JOB: u32 = 32;

/// A connection with its jobs: each holds it. It is closed with the last one.
#[derive(Debug)]
pub(crate) struct SharedClient {
    pub(crate) client: Client,
    is_lost: AtomicBool,
}

impl SharedClient {
    /// The operations that a job may have outstanding, so that the connection's limit is enough for all.
    pub(crate) fn operations_per_job(&self) -> usize {
        let limits = self.client.hello().limits;
        (limits.operations / jobs_per_connection(limits)) as usize
    }
}

static CLIENTS: Mutex<Vec<Weak<SharedClient>>> = Mutex::new(Vec::new());

/// Returns the path of the daemon's socket.
pub(crate) fn socket() -> PathBuf {
    std::env::var_os("SUMAC_SOCKET").map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}

/// Returns the number of jobs of a connection: few where the daemon may not enlarge its sockets' buffers.
fn jobs_per_connection(limits: Limits) -> u32 {
    (limits.operations / OPERATIONS_PER_JOB).min(limits.jobs).clamp(1, JOBS_PER_CONNECTION)
}

/// Returns a connection that has room for another job.
pub(crate) fn client() -> Result<Arc<SharedClient>, ClientError> {
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.retain(|client| client.strong_count() > 0);
    for shared in clients.iter().filter_map(Weak::upgrade) {
        let limit = jobs_per_connection(shared.client.hello().limits) as usize;
        // Without this clone.
        if Arc::strong_count(&shared) - 1 < limit && !shared.is_lost.load(Ordering::Relaxed) {
            return Ok(shared);
        }
    }
    let shared =
        Arc::new(SharedClient { client: Client::connect(socket())?, is_lost: AtomicBool::new(false) });
    clients.push(Arc::downgrade(&shared));
    Ok(shared)
}

/// Begins to join a job. A connection that is lost, since the daemon was restarted, is replaced.
pub(crate) fn begin_open(options: &JobOptions) -> Result<(Arc<SharedClient>, Opening), ClientError> {
    let shared = client()?;
    match shared.client.begin_open(options) {
        Ok(opening) => Ok((shared, opening)),
        Err(ClientError::Lost(_) | ClientError::Socket(_)) => {
            shared.is_lost.store(true, Ordering::Relaxed);
            let shared = client()?;
            let opening = shared.client.begin_open(options)?;
            Ok((shared, opening))
        }
        Err(error) => Err(error),
    }
}

/// The options of all jobs of the plugin. Secret and control plane are those of the environment, as for
/// `sumac.torch`, or else the daemon's.
pub(crate) fn job_options(name: String, rank: u16, world: u16) -> Result<JobOptions, PluginError> {
    let mut options = JobOptions::new(name, rank, world);
    if let Some(path) = std::env::var_os("SUMAC_SECRET_FILE") {
        let secret = std::fs::read_to_string(&path).map_err(|error| {
            PluginError::system(format!("cannot read SUMAC_SECRET_FILE={}: {error}", path.to_string_lossy()))
        })?;
        options = options.secret(secret.trim());
    }
    if let Ok(endpoint) = std::env::var("SUMAC_AGGREGATOR") {
        options = options.aggregator(endpoint);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_share_the_operations_of_a_connection() {
        let limits = |operations, jobs| Limits {
            message_bytes: 131_072,
            regions: 256,
            region_bytes: 1 << 36,
            jobs,
            operations,
            finished: 1024,
        };
        assert_eq!(jobs_per_connection(limits(1024, 16)), 8);
        assert_eq!(jobs_per_connection(limits(1024, 4)), 4);
        assert_eq!(jobs_per_connection(limits(100, 16)), 3);
        assert_eq!(jobs_per_connection(limits(16, 16)), 1);
    }
}
