//! The new daemon's part: it takes the state of a running one, and goes on from there.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sumac_api::Channel;
use sumac_control::SuspendedMember;
use sumac_datapath::{LaneSnapshot, ResumedLane};
use sumac_handover::{StateError, read_host, read_members};
use sumac_host::{ConnectionId, Credentials, Host, HostState, JobId, Resources as _};
use sumac_memory::Holder;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;

use super::channel::HandoverChannel;
use super::state::{Answer, HandoverState, Mapping, Offer, Request};
use super::versions::{Versions, settings};
use super::{HandoverError, Listeners};
use crate::arena::{Arena, CompletionEvent, MappedRegion};
use crate::backend::HandedBackend;
use crate::config::Config;
use crate::job::{JobContext, JobTask};
use crate::job_events::TaskEvent;
use crate::outbox::Outbox;
use crate::server::Sessions;
use crate::service::Service;
use crate::session::Session;

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
    host: HostState,
    members: Vec<(JobId, SuspendedMember)>,
    /// Of the core's handles.
    handles: Vec<OwnedFd>,
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
    pub(crate) fn take(self) -> Result<(Takeover, Listeners, HandedBackend), HandoverError> {
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
        let wrong = |error: StateError| HandoverError::State(error.to_string());
        let host = read_host(&state.host).map_err(wrong)?;
        let members = read_members(&state.members).map_err(wrong)?;
        let mut descriptors = descriptors.into_iter();
        let mut next = |what| descriptors.next().ok_or_else(|| short(what));
        let (trainers, successors) = (next("the trainers' socket")?, next("the socket of successors")?);
        let metrics = if state.has_metrics { descriptors.next().map(TcpListener::from) } else { None };
        let sockets: Vec<Vec<OwnedFd>> =
            state.sockets.iter().map(|count| descriptors.by_ref().take(*count).collect()).collect();
        let handles = descriptors.collect();
        let (fallback, is_xdp) = (state.fallback.clone(), state.is_xdp);
        if is_xdp {
            channel.send(&Request::CloseInterface).map_err(silent)?;
            let (answer, _) = channel.receive().map_err(silent)?;
            let Answer::InterfaceClosed = answer else { return Err(refused(answer)) };
        }
        let listeners = Listeners { trainers, successors };
        let takeover = Takeover { channel, state, host, members, handles, metrics };
        Ok((takeover, listeners, HandedBackend { sockets, fallback, is_xdp }))
    }
}

fn short(what: &str) -> HandoverError {
    HandoverError::State(format!("{what} is missing among the descriptors"))
}

/// Jobs and sessions taken over, frozen until the predecessor exits. Dropped before, they are left to it.
pub(crate) struct Resumed {
    context: JobContext,
    tasks: Vec<(JobTask, UnboundedReceiver<TaskEvent>, SuspendedMember)>,
    /// The tasks of jobs whose ranks are all on this host.
    local_tasks: Vec<(JobTask, UnboundedReceiver<TaskEvent>)>,
    sessions: Vec<Session>,
    is_started: bool,
}

impl Takeover {
    /// Returns the connection to systemd.
    pub(crate) fn service(&self) -> Service {
        self.state.service.clone()
    }

    /// Returns the core's state.
    pub(crate) fn host(&mut self) -> HostState {
        std::mem::take(&mut self.host)
    }

    /// Makes the handles of sessions and jobs anew, in a daemon whose data path is frozen, and has the other
    /// one end.
    pub(crate) fn resume(self, context: JobContext, sessions: &Sessions) -> Result<Resumed, HandoverError> {
        let Takeover { channel, state, members, handles, .. } = self;
        let core = context.core.clone();
        let mut resumed = Resumed {
            context,
            tasks: Vec::new(),
            local_tasks: Vec::new(),
            sessions: Vec::new(),
            is_started: false,
        };
        let HandoverState { mappings, mut lanes, .. } = state;
        let channels = core.call(|host, arena, _| rebuild(host, arena, handles, &mappings));
        for (connection, credentials, channel) in channels.map_err(HandoverError::State)? {
            let outbox =
                Outbox::new().map_err(|error| HandoverError::State(format!("no eventfd: {error}")))?;
            let session = sessions.session(connection, credentials, channel, Arc::new(outbox));
            resumed.sessions.push(session);
        }
        for (id, member) in members {
            let own = lanes.extract_if(.., |lane| lane.job == id).collect();
            resumed.job(id, member, own).map_err(HandoverError::State)?;
        }
        for id in core.call(|host, _, _| host.open_local_jobs()) {
            let task = JobTask::new(&resumed.context, id);
            let missing = || HandoverError::State(format!("the state of job {id} is missing"));
            resumed.local_tasks.push(task.ok_or_else(missing)?);
        }
        channel.send(&Request::Ready).map_err(silent)?;
        match channel.receive().map_err(silent)?.0 {
            Answer::Go => Ok(resumed),
            answer => Err(refused(answer)),
        }
    }
}

/// Makes the handles anew. Returns the connections' sockets.
fn rebuild(
    host: &Host,
    arena: &mut Arena,
    handles: Vec<OwnedFd>,
    mappings: &[Mapping],
) -> Result<Vec<(ConnectionId, Credentials, Arc<Channel>)>, String> {
    let mut handles = handles.into_iter();
    let mut next = |what: &str| handles.next().ok_or_else(|| format!("{what} is missing"));
    let mut channels = BTreeMap::new();
    for (connection, credentials, _) in host.connections() {
        let channel = Channel::from_socket(next("a connection's socket")?);
        channels.insert(connection, (credentials.clone(), Arc::new(channel)));
        for handle in host.handles(connection) {
            let event = CompletionEvent { eventfd: next("a job's eventfd")? };
            arena.events.insert((connection, handle), Arc::new(event));
        }
    }
    let files = host.regions().map(|_| next("a region's file")).collect::<Result<Vec<_>, _>>()?;
    let mut holders = Vec::new();
    for _ in 0..mappings.iter().map(|mapping| mapping.holder + 1).max().unwrap_or(0) {
        holders.push(Arc::new(Holder::new([next("a holder's memory")?, next("a holder's link")?])));
    }
    for (((region, size, owners), file), mapping) in host.regions().zip(files).zip(mappings) {
        let holder = holders.get(mapping.holder).ok_or("a memory holder is missing")?;
        let trainers = owners.iter().filter_map(|owner| Some(channels.get(owner)?.1.clone())).collect();
        let at = (holder, mapping.address);
        let mapped = MappedRegion::take_over(file, size, at, trainers, host.is_whole(region));
        arena.regions.insert(region, mapped.map_err(|failure| failure.to_string())?);
    }
    for (key, request) in host.leases() {
        arena.lease(key, request).map_err(|failure| failure.to_string())?;
    }
    for (key, word) in host.words() {
        arena.lease_word(key, word).map_err(|failure| failure.to_string())?;
    }
    for (job, credentials, open) in host.jobs() {
        let credentials = credentials.ok_or("the connection that has opened a job is missing")?;
        arena.plan(job, credentials, open).map_err(|failure| failure.to_string())?;
    }
    Ok(channels
        .into_iter()
        .map(|(connection, (credentials, channel))| (connection, credentials, channel))
        .collect())
}

impl Resumed {
    fn job(&mut self, id: JobId, member: SuspendedMember, lanes: Vec<LaneSnapshot>) -> Result<(), String> {
        let grant = member.grant().clone();
        let number = grant.terms.job;
        let failed = |problem: &dyn std::fmt::Display| format!("job number {number}: {problem}");
        let (task, events) =
            JobTask::new(&self.context, id).ok_or_else(|| failed(&"its state is missing"))?;
        task.trace(&grant);
        let core = &self.context.core;
        let lease =
            |key| core.call(|host, arena, _| arena.buffer(key, host.rank_sum(key), grant.terms.is_direct()));
        let own: Vec<ResumedLane> = lanes
            .into_iter()
            .map(|lane| lane.resume(lease))
            .collect::<Result<_, _>>()
            .map_err(|problem| failed(&problem))?;
        self.context.backend.resume_job(id, &grant, own).map_err(|failure| failed(&failure))?;
        self.tasks.push((task, events, member));
        Ok(())
    }

    /// Goes on.
    pub(crate) fn start(mut self, runtime: &Handle) {
        self.is_started = true;
        let (tasks, sessions) = (std::mem::take(&mut self.tasks), std::mem::take(&mut self.sessions));
        tracing::info!(jobs = tasks.len(), trainers = sessions.len(), "taking over");
        for (task, events, member) in tasks {
            runtime.spawn(task.resume(events, member));
        }
        for (task, events) in std::mem::take(&mut self.local_tasks) {
            runtime.spawn(task.live_locally(events));
        }
        sessions.into_iter().for_each(Session::start);
        self.context.backend.datapath().thaw();
        self.context.core.call(|host, _, out| host.restart_opens(out));
    }
}

impl Drop for Resumed {
    fn drop(&mut self) {
        if !self.is_started {
            // The other daemon goes on with the operations: nothing ends here.
            self.context.core.call(|_, arena, _| drop(arena.hand_over()));
            self.context.backend.datapath().hand_over();
        }
    }
}
