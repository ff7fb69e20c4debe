//! The new daemon's part: it takes the state of a running one, and goes on from there.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::sync::mpsc;

use super::HandoverError;
use super::channel::HandoverChannel;
use super::state::{Answer, HandoverState, Offer, Request};
use super::versions::{Versions, settings};
use crate::backend::HandedBackend;
use crate::config::Config;
use crate::daemon::DaemonState;
use crate::datapath::{LaneSnapshot, ResumedLane};
use crate::job::{JobState, ResumedJob};
use crate::operations::{Client, Restored};
use crate::server::SessionThread;
use crate::session::{Region, Session, SessionDescriptors, SessionState};
use crate::wake_queue::WakeQueue;
use crate::watch::Service;

/// The longest wait for an answer: the other daemon waits for jobs that are being opened.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A running daemon that has agreed to hand over.
pub(crate) struct Successor {
    channel: HandoverChannel,
}

/// The state of a daemon that stands still.
pub(crate) struct Takeover {
    channel: HandoverChannel,
    state: HandoverState,
    descriptors: Vec<SessionDescriptors>,
    listener: Option<OwnedFd>,
    pub(crate) metrics: Option<TcpListener>,
}

fn silent(error: io::Error) -> HandoverError {
    HandoverError::Silent(error.to_string())
}

fn refused(answer: Answer) -> HandoverError {
    match answer {
        Answer::Refused(reason) => HandoverError::Refused(reason),
        answer => HandoverError::State(format!("unexpected answer {answer:?}")),
    }
}

impl Successor {
    /// Asks the daemon with this configuration's socket whether it can hand over to one of these versions.
    pub(crate) fn connect(config: &Config, versions: Versions) -> Result<Successor, HandoverError> {
        let path = super::path(&config.socket);
        let connect = || {
            let address = SocketAddrUnix::new(&path)?;
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
            rustix::net::connect(&socket, &address)?;
            Ok(socket)
        };
        let socket = connect().map_err(|source: rustix::io::Errno| HandoverError::NoDaemon {
            path: path.clone(),
            source: source.into(),
        })?;
        let peer = getsockopt(&socket, PeerCredentials).map_err(|error| silent(error.into()))?;
        if peer.uid() != 0 && peer.uid() != rustix::process::geteuid().as_raw() {
            return Err(HandoverError::Foreign { path, uid: peer.uid() });
        }
        let channel = HandoverChannel::new(socket);
        channel.set_timeout(ANSWER_TIMEOUT).map_err(silent)?;
        channel.send(&Offer { versions, settings: settings(config) }).map_err(silent)?;
        match channel.receive().map_err(silent)?.0 {
            Answer::Compatible => Ok(Successor { channel }),
            answer => Err(refused(answer)),
        }
    }

    /// Has the daemon stand still, and takes its state. From here on it waits for moments only.
    pub(crate) fn take(self) -> Result<(Takeover, HandedBackend), HandoverError> {
        let Successor { channel } = self;
        channel.send(&Request::Freeze).map_err(silent)?;
        let (answer, files) = channel.receive().map_err(silent)?;
        let Answer::State { descriptors: count } = answer else { return Err(refused(answer)) };
        let file = files.into_iter().next().ok_or_else(|| short("the file of the state"))?;
        let mut descriptors = Vec::new();
        while descriptors.len() < count {
            let (answer, some) = channel.receive().map_err(silent)?;
            let (Answer::Descriptors, false) = (&answer, some.is_empty()) else {
                return Err(refused(answer));
            };
            descriptors.extend(some);
        }
        let state = HandoverState::of_file(file).map_err(|error| HandoverError::State(error.to_string()))?;
        let mut descriptors = descriptors.into_iter();
        let listener = descriptors.next().ok_or_else(|| short("the trainers' socket"))?;
        let metrics = if state.has_metrics { descriptors.next().map(TcpListener::from) } else { None };
        let sockets: Vec<Vec<OwnedFd>> =
            state.sockets.iter().map(|count| descriptors.by_ref().take(*count).collect()).collect();
        let sessions = state.sessions.iter().map(|session| {
            SessionDescriptors::take(session, &mut descriptors).ok_or_else(|| short("a session"))
        });
        let sessions = sessions.collect::<Result<_, _>>()?;
        let (fallback, is_xdp) = (state.fallback.clone(), state.is_xdp);
        if is_xdp {
            channel.send(&Request::CloseInterface).map_err(silent)?;
            let (answer, _) = channel.receive().map_err(silent)?;
            let Answer::InterfaceClosed = answer else { return Err(refused(answer)) };
        }
        let takeover = Takeover { channel, state, descriptors: sessions, listener: Some(listener), metrics };
        Ok((takeover, HandedBackend { sockets, fallback, is_xdp }))
    }
}

fn short(what: &str) -> HandoverError {
    HandoverError::State(format!("{what} is missing among the descriptors"))
}

/// All that goes on in this daemon, and stands still until the other one has ended. Dropped before, it is left to that one.
pub(crate) struct Resumed {
    daemon: Arc<DaemonState>,
    jobs: Vec<ResumedJob>,
    sessions: Vec<SessionThread>,
    is_started: bool,
}

impl Takeover {
    /// Returns the number of the last connection.
    pub(crate) fn last_connection(&self) -> u64 {
        self.state.sessions.iter().map(|session| session.connection).max().unwrap_or(0)
    }

    /// Returns the connection to systemd.
    pub(crate) fn service(&self) -> Service {
        self.state.service.clone()
    }

    /// Returns the trainers' socket.
    pub(crate) fn take_listener(&mut self) -> Result<OwnedFd, HandoverError> {
        self.listener.take().ok_or_else(|| short("the trainers' socket"))
    }

    /// Takes sessions and jobs into the daemon, whose data path is frozen, and has the other one end.
    pub(crate) fn resume(self, daemon: &Arc<DaemonState>) -> Result<Resumed, HandoverError> {
        let Takeover { channel, state, descriptors, .. } = self;
        let mut resumed =
            Resumed { daemon: daemon.clone(), jobs: Vec::new(), sessions: Vec::new(), is_started: false };
        resumed.fill(state, descriptors).map_err(HandoverError::State)?;
        channel.send(&Request::Ready).map_err(silent)?;
        match channel.receive().map_err(silent)?.0 {
            Answer::Go => Ok(resumed),
            answer => Err(refused(answer)),
        }
    }
}

impl Resumed {
    fn fill(&mut self, state: HandoverState, descriptors: Vec<SessionDescriptors>) -> Result<(), String> {
        let HandoverState { sessions, jobs, lanes, .. } = state;
        let (sessions, regions) = self.map(sessions, descriptors)?;
        let client = |connection, handle| {
            let session = sessions.iter().find(|session| session.state.connection == connection)?;
            let (notes, credentials) = (session.notes.clone(), session.state.credentials.clone());
            Some(Client { notes, connection, handle, credentials })
        };
        let daemon = self.daemon.clone();
        let restored = Restored { quotas: &daemon.quotas, client: &client, regions: &regions };
        let mut tasks = HashMap::new();
        for job in jobs {
            let resumed = self.job(job, &lanes, &restored)?;
            let number = resumed.operations.terms.job;
            tasks.insert(number, (resumed.operations.clone(), resumed.job.events.clone()));
            self.jobs.push(resumed);
        }
        for MappedSession { state, channel, events, notes } in sessions {
            let (connection, uid) = (state.connection, state.credentials.uid);
            let session = Session::resume(&daemon, state, channel, events, notes.clone(), &regions, &tasks)?;
            let thread = SessionThread::resume(&daemon, connection, session, notes, uid);
            self.sessions.push(thread.map_err(|failure| failure.to_string())?);
        }
        Ok(())
    }

    /// Maps the sessions' regions.
    fn map(
        &self,
        sessions: Vec<SessionState>,
        descriptors: Vec<SessionDescriptors>,
    ) -> Result<(Vec<MappedSession>, Regions), String> {
        let (mut mapped, mut regions) = (Vec::new(), HashMap::new());
        for (state, SessionDescriptors { channel, events, regions: files }) in
            sessions.into_iter().zip(descriptors)
        {
            for (region, file) in state.regions.iter().zip(files) {
                let taken = Region::take_over(&self.daemon.quotas, region.uid, file, region.size);
                regions.insert(region.number, taken.map_err(|failure| failure.to_string())?);
            }
            let notes = WakeQueue::new().map_err(|error| format!("no eventfd: {error}"))?;
            mapped.push(MappedSession { state, channel, events, notes: Arc::new(notes) });
        }
        Ok((mapped, regions))
    }

    fn job(
        &self,
        state: JobState,
        lanes: &[LaneSnapshot],
        restored: &Restored<'_>,
    ) -> Result<ResumedJob, String> {
        let daemon = &self.daemon;
        let (name, grant) = (state.open.spec.job.clone(), state.member.grant().clone());
        let failed = |problem: &dyn std::fmt::Display| format!("job {name:?}: {problem}");
        let (connection, handle) = state.opener;
        let client = (restored.client)(connection, handle);
        let client = client.ok_or_else(|| failed(&"the connection that has opened it is missing"))?;
        let reserved = daemon.runtime.block_on(daemon.jobs.reserve(&name, state.open.spec.rank));
        let reserved = reserved.map_err(|failure| failed(&failure))?;
        let job = ResumedJob::new(daemon, state, reserved, mpsc::unbounded_channel(), (client, restored))?;
        let number = grant.terms.job;
        let own = lanes.iter().filter(|lane| lane.job == number);
        let own = own.map(|lane| lane.resume(|place| restored.lease(place)));
        let own: Vec<ResumedLane> = own.collect::<Result<_, _>>().map_err(|problem| failed(&problem))?;
        daemon.backend.resume_job(&grant, own).map_err(|failure| failed(&failure))?;
        Ok(job)
    }

    /// Goes on.
    pub(crate) fn start(mut self) {
        self.is_started = true;
        let (jobs, sessions) = (std::mem::take(&mut self.jobs), std::mem::take(&mut self.sessions));
        tracing::info!(jobs = jobs.len(), trainers = sessions.len(), "taking over");
        for job in jobs {
            self.daemon.runtime.spawn(job.run());
        }
        sessions.into_iter().for_each(SessionThread::start);
        self.daemon.backend.datapath.thaw();
    }
}

impl Drop for Resumed {
    fn drop(&mut self) {
        if self.is_started {
            return;
        }
        // The other daemon goes on with the operations: nothing ends here.
        self.jobs.iter().for_each(|job| job.operations.hand_over());
        self.daemon.backend.datapath.hand_over();
    }
}

/// Regions by their numbers in the other daemon.
type Regions = HashMap<u64, Arc<Region>>;

struct MappedSession {
    state: SessionState,
    channel: OwnedFd,
    events: Vec<OwnedFd>,
    notes: Arc<WakeQueue<crate::session::Notification>>,
}
