//! The handover of a connection to another daemon: its handles, outstanding commands and file descriptors.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use sumac_api::{Channel, Failure};
use tokio::sync::mpsc::UnboundedSender;

use super::completion_event::CompletionEvent;
use super::outstanding::OperationsState;
use super::{JobState, Region, Session, SessionJob};
use crate::access::Credentials;
use crate::daemon::DaemonState;
use crate::job::{JobEvent, JobHandle};
use crate::operations::{ClientId, JobOperations};
use crate::session::Notification;
use crate::sync::{from_monotonic, to_monotonic};
use crate::wake_queue::WakeQueue;

/// A registered region; its file is among the connection's descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RegionState {
    handle: u64,
    pub(crate) number: u64,
    pub(crate) uid: u32,
    pub(crate) size: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum SessionJobState {
    Open {
        /// The job's number in packets.
        wire_job: u16,
        client: ClientId,
    },
    Failed(Failure),
}

#[derive(Debug, Serialize, Deserialize)]
struct SessionJobEntry {
    handle: u64,
    /// Whether this connection has opened the job, rather than attached to it.
    is_opener: bool,
    state: SessionJobState,
}

/// A connection as one daemon hands it over to another. Its descriptors are the socket, the jobs' eventfds, and the regions'
/// files, in this order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionState {
    pub(crate) connection: u64,
    pub(crate) credentials: Credentials,
    greeted: bool,
    handles: u64,
    jobs: Vec<SessionJobEntry>,
    pub(crate) regions: Vec<RegionState>,
    operations: OperationsState,
    resume_ns: Option<u64>,
}

/// The descriptors of a connection.
pub(crate) struct SessionDescriptors {
    pub(crate) channel: OwnedFd,
    pub(crate) events: Vec<OwnedFd>,
    pub(crate) regions: Vec<OwnedFd>,
}

impl SessionDescriptors {
    /// Takes those of a connection from all descriptors.
    pub(crate) fn take(state: &SessionState, all: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let channel = all.next()?;
        let events: Vec<_> = all.take(state.jobs.len()).collect();
        let regions: Vec<_> = all.take(state.regions.len()).collect();
        let are_all = (events.len(), regions.len()) == (state.jobs.len(), state.regions.len());
        are_all.then_some(SessionDescriptors { channel, events, regions })
    }
}

impl Session {
    /// Returns the state for another daemon, and the descriptors; an error names what has to end first.
    pub(super) fn snapshot(&self) -> Result<(SessionState, Vec<OwnedFd>), String> {
        let mut fds = vec![duplicate(&self.channel)?];
        let mut jobs = Vec::new();
        for (handle, job) in &self.jobs {
            let state = match &job.state {
                JobState::Open { operations, client } => {
                    SessionJobState::Open { wire_job: operations.terms.job, client: *client }
                }
                JobState::Failed(failure) => SessionJobState::Failed(failure.clone()),
                JobState::Opening => {
                    return Err(format!("{} is opening a job", self.credentials));
                }
                JobState::Closing { .. } => return Err(format!("{} is closing a job", self.credentials)),
            };
            fds.push(duplicate(&job.completion.eventfd)?);
            jobs.push(SessionJobEntry { handle: *handle, is_opener: job.job.is_some(), state });
        }
        let mut regions = Vec::new();
        for (handle, region) in &self.regions {
            let file = region.file.as_ref().ok_or_else(|| {
                format!("{} has registered memory while `live_upgrade` was false", self.credentials)
            })?;
            fds.push(duplicate(file)?);
            let (number, uid, size) = (region.number, region.uid, region.size());
            regions.push(RegionState { handle: *handle, number, uid, size });
        }
        let state = SessionState {
            connection: self.connection,
            credentials: self.credentials.clone(),
            greeted: self.greeted,
            handles: self.handles,
            jobs,
            regions,
            operations: self.operations.snapshot(),
            resume_ns: self.resume.map(to_monotonic),
        };
        Ok((state, fds))
    }

    /// Continues a connection of another daemon. `regions`: by their numbers there; `jobs`: by their numbers in packets.
    pub(crate) fn resume(
        daemon: &Arc<DaemonState>,
        state: SessionState,
        channel: OwnedFd,
        events: Vec<OwnedFd>,
        notes: Arc<WakeQueue<Notification>>,
        regions: &HashMap<u64, Arc<Region>>,
        jobs: &HashMap<u16, (Arc<JobOperations>, UnboundedSender<JobEvent>)>,
    ) -> Result<Session, String> {
        let SessionState { connection, credentials, greeted, handles, operations, resume_ns, .. } = state;
        let resume: Option<Instant> = resume_ns.map(from_monotonic);
        let uid = credentials.uid;
        let channel = Channel::from_socket(channel);
        let mut session = Session::new(daemon.clone(), channel, connection, credentials, notes, resume);
        (session.greeted, session.handles) = (greeted, handles);
        session.operations.resume(operations);
        for region in state.regions {
            let mapped = regions.get(&region.number);
            let mapped = mapped.ok_or_else(|| format!("region {} was not handed over", region.number))?;
            session.regions.insert(region.handle, mapped.clone());
        }
        for (SessionJobEntry { handle, is_opener, state }, eventfd) in state.jobs.into_iter().zip(events) {
            let reserved = daemon.quotas.jobs.reserve(uid, 1).map_err(|failure| failure.to_string())?;
            let (job, state) = match state {
                SessionJobState::Failed(failure) => (None, JobState::Failed(failure)),
                SessionJobState::Open { wire_job, client } => {
                    let found = jobs.get(&wire_job);
                    let (operations, job) =
                        found.ok_or_else(|| format!("job number {wire_job} was not handed over"))?;
                    let state = JobState::Open { operations: operations.clone(), client };
                    (is_opener.then(|| JobHandle(job.clone())), state)
                }
            };
            let completion = CompletionEvent { eventfd };
            session.jobs.insert(handle, SessionJob { job, completion, state, _reserved: Arc::new(reserved) });
        }
        Ok(session)
    }
}

fn duplicate(file: &impl AsFd) -> Result<OwnedFd, String> {
    file.as_fd().try_clone_to_owned().map_err(|error| format!("cannot duplicate a descriptor: {error}"))
}
