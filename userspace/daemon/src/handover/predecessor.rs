//! The running daemon's part: it offers itself to successors, freezes, and ends or goes on.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sd_notify::NotifyState;
use sumac_control::SuspendedMember;
use sumac_handover::{write_host, write_members};
use sumac_host::{Host, JobId};
use sumac_memory::{HeldRegions, Holder};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::channel::{HandoverChannel, MAX_DESCRIPTORS};
use super::state::{Answer, HandoverState, Mapping, Offer, Request};
use super::versions::{Versions, different_setting, settings};
use crate::arena::{Arena, TaskHandle};
use crate::backend::InUse;
use crate::core::Core;
use crate::job_events::{Freeze, HandedOver, TaskEvent};
use crate::outbox::Notification;
use crate::parameter::ParameterHostTask;
use crate::server::{ServeError, Server, system};
use crate::state::DaemonState;
use crate::sync::Event;

/// The time that a successor may take before it asks for the freeze: it touches nothing meanwhile.
const OFFER_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that it may take while this daemon stands still.
const FROZEN_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for jobs that open, or leave, and for errors that are about to be reported.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// The time for each part of the daemon to stand still.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(3);

/// The parts of a running daemon that a handover ends.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) state: Arc<DaemonState>,
    pub(crate) server: Mutex<Option<Server>>,
    /// The socket at which successors ask.
    pub(crate) successors: OwnedFd,
    pub(crate) role: Mutex<Option<ParameterHostTask>>,
    /// The socket that metrics are scraped at.
    pub(crate) metrics: Option<TcpListener>,
    pub(crate) versions: Versions,
    /// Whether a successor has taken over.
    pub(crate) is_handed_over: tokio::sync::watch::Sender<bool>,
}

impl Parts {
    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the socket at which successors ask; that of a dead daemon is replaced. The trainers' socket is
/// this daemon's.
pub(crate) fn listen(path: &Path) -> Result<OwnedFd, ServeError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(system("remove the stale", path)(error));
        }
        _ => {}
    }
    let address = SocketAddrUnix::new(path).map_err(system("listen at", path))?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(family, kind, flags, None).map_err(system("create the socket", path))?;
    rustix::net::bind(&socket, &address).map_err(system("bind", path))?;
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(system("set the permissions of", path))?;
    rustix::net::listen(&socket, 1).map_err(system("listen at", path))?;
    Ok(socket)
}

/// The thread that hands over. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Predecessor {
    parts: Arc<Parts>,
    stop: Arc<Event>,
    thread: Option<JoinHandle<Option<HeldRegions>>>,
}

impl Predecessor {
    pub(crate) fn start(parts: Arc<Parts>) -> io::Result<Predecessor> {
        let stop = Arc::new(Event::new()?);
        let (parts_of, stop_of) = (parts.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("sumac-handover".into())
            .spawn(move || serve(&parts_of, &stop_of))?;
        Ok(Predecessor { parts, stop, thread: Some(thread) })
    }

    /// Ends the thread. Returns the memory that this process is to keep for a daemon that has taken over.
    pub(crate) fn end(mut self) -> Option<HeldRegions> {
        self.join()
    }

    fn join(&mut self) -> Option<HeldRegions> {
        self.stop.signal();
        // A panic has been printed.
        let held = self.thread.take()?.join().ok().flatten();
        if !*self.parts.is_handed_over.borrow() {
            let _ = std::fs::remove_file(super::path(&self.parts.state.config.socket));
        }
        held
    }
}

impl Drop for Predecessor {
    fn drop(&mut self) {
        if let Some(held) = self.join() {
            held.keep();
        }
    }
}

/// Returns the memory that a daemon that has taken over writes to through this process.
fn serve(parts: &Parts, stop: &Event) -> Option<HeldRegions> {
    let listener = &parts.successors;
    loop {
        let mut poll = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        let _ = rustix::event::poll(&mut poll, None);
        if !poll[1].revents().is_empty() {
            return None;
        }
        let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else {
            std::thread::sleep(SETTLE_PAUSE);
            continue;
        };
        match hand_over(parts, socket) {
            Ok(held) => {
                parts.is_handed_over.send_replace(true);
                tracing::info!("a new daemon has taken over");
                return Some(held);
            }
            Err(reason) => tracing::warn!(reason, "a new daemon has not taken over; going on"),
        }
    }
}

/// Answers a successor. Returns the memory that is its own through this process. An error states why it has
/// not taken over, in which case this daemon goes on.
fn hand_over(parts: &Parts, socket: OwnedFd) -> Result<HeldRegions, String> {
    let peer = getsockopt(&socket, PeerCredentials).map_err(|error| error.desc().to_owned())?;
    if peer.uid() != 0 && peer.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("user {} may not take over", peer.uid()));
    }
    let channel = HandoverChannel::new(socket);
    let failed = |error: io::Error| format!("the new daemon does not go on: {error}");
    channel.set_timeout(OFFER_TIMEOUT).map_err(failed)?;
    let (offer, _) = channel.receive::<Offer>().map_err(failed)?;
    if let Err(reason) = examine(parts, &offer) {
        let _ = channel.send(&Answer::Refused(reason.clone()));
        return Err(reason);
    }
    channel.send(&Answer::Compatible).map_err(failed)?;
    let (Request::Freeze, _) = channel.receive::<Request>().map_err(failed)? else {
        return Err("the new daemon does not keep to the protocol".into());
    };
    channel.set_timeout(FROZEN_TIMEOUT).map_err(failed)?;
    tracing::info!(peer = peer.pid(), "standing still for a new daemon");
    let started = Instant::now();
    let mut frozen =
        Frozen { parts, tasks: Vec::new(), is_closed: false, is_handed_over: false, in_use: None };
    let state = frozen.freeze();
    let (held, state, descriptors) = match state {
        Ok(state) => state,
        Err(reason) => {
            let _ = channel.send(&Answer::Refused(reason.clone()));
            return Err(reason);
        }
    };
    send_state(&channel, &state, &descriptors).map_err(failed)?;
    drop(descriptors);
    loop {
        match channel.receive::<Request>().map_err(failed)?.0 {
            Request::CloseInterface => {
                frozen.close_interface();
                channel.send(&Answer::InterfaceClosed).map_err(failed)?;
            }
            Request::Ready => break,
            Request::Freeze => return Err("the new daemon does not keep to the protocol".into()),
        }
    }
    let jobs = frozen.tasks.len();
    let held = frozen.hand_over(held);
    tracing::info!(stood_still = ?started.elapsed(), jobs, "handing over");
    // From here on the jobs are the successor's, whatever becomes of it.
    let _ = channel.send(&Answer::Go);
    // Before this process ends: systemd would take that for the end of the service.
    parts.state.service.notify(&NotifyState::MainPid(peer.pid().unsigned_abs()));
    Ok(held)
}

/// Refuses a successor before anything is touched.
fn examine(parts: &Parts, offer: &Offer) -> Result<(), String> {
    let state = &parts.state;
    let is_xdp = state.backend.interface().is_some();
    let difference = parts.versions.difference(&offer.versions, is_xdp);
    let difference = difference.or_else(|| different_setting(&settings(&state.config), &offer.settings));
    if let Some(difference) = difference {
        return Err(difference);
    }
    settle(parts)
}

/// Waits until no job opens or leaves. Names those that do, and what cannot be handed over.
fn settle(parts: &Parts) -> Result<(), String> {
    let state = &parts.state;
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let hosted = state.parameter_jobs.numbers();
        if !hosted.is_empty() {
            return Err(format!(
                "it is the parameter host of jobs number {hosted:?}, whose sums cannot be handed over; wait \
                until these jobs have ended"
            ));
        }
        let unsettled = state.core.call(|host, _, _| host.unsettled());
        if unsettled.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(unsettled_jobs(&unsettled));
        }
        std::thread::sleep(SETTLE_PAUSE);
    }
}

fn unsettled_jobs(names: &[String]) -> String {
    format!("jobs {names:?} have just been opened, are being closed, or sum in memory; try again later")
}

fn send_state(channel: &HandoverChannel, state: &HandoverState, descriptors: &[OwnedFd]) -> io::Result<()> {
    let file = state.to_file()?;
    channel.send_with(&Answer::State { descriptors: descriptors.len() }, &[file.as_fd()])?;
    for some in descriptors.chunks(MAX_DESCRIPTORS) {
        let some: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
        channel.send_with(&Answer::Descriptors, &some)?;
    }
    Ok(())
}

/// A daemon that stands still. Dropped, it goes on, unless it was handed over.
struct Frozen<'a> {
    parts: &'a Parts,
    /// The senders by which the jobs' tasks end.
    tasks: Vec<oneshot::Sender<HandedOver>>,
    /// Whether the sockets of AF_XDP are closed.
    is_closed: bool,
    is_handed_over: bool,
    /// The backend does not change meanwhile.
    in_use: Option<InUse>,
}

impl Frozen<'_> {
    /// Stops everything, from the trainers to the network. Returns the state and the descriptors, and this
    /// process as a memory holder.
    fn freeze(&mut self) -> Result<(HeldRegions, HandoverState, Vec<OwnedFd>), String> {
        let prepared = HeldRegions::prepare();
        let (held, own) = prepared.map_err(|error| format!("cannot open this process's memory: {error}"))?;
        let Parts { state, metrics, .. } = self.parts;
        let listener = match self.parts.server().as_ref() {
            Some(server) => {
                server.freeze();
                duplicate(&*server.listener)?
            }
            None => return Err("this daemon is stopping".into()),
        };
        self.in_use = state.backend.try_in_use();
        ensure!(self.in_use.is_some(), "the backend is changing to AF_XDP; try again".to_owned());
        freeze_sessions(&state.core)?;
        if !state.backend.datapath().freeze() {
            return Err("a thread of the data path has ended".into());
        }
        wait_for_sums(&state.core)?;
        let members = self.freeze_tasks()?;
        let hosted = state.parameter_jobs.numbers();
        if !hosted.is_empty() {
            return Err(format!("it has become the parameter host of jobs number {hosted:?}"));
        }
        let lanes = state.backend.datapath().snapshot()?;
        let sockets = state.backend.datapath().sockets()?;
        // The messages of operations that have ended meanwhile are written.
        freeze_sessions(&state.core)?;
        let mut descriptors = vec![listener, duplicate(&self.parts.successors)?];
        descriptors.extend(metrics.as_ref().map(duplicate).transpose()?);
        let counts = sockets.iter().map(Vec::len).collect();
        descriptors.extend(sockets.into_iter().flatten());
        let (host, mappings) = state.core.call(|host, arena, _| {
            let unsettled = host.unsettled();
            if !unsettled.is_empty() {
                return Err(unsettled_jobs(&unsettled));
            }
            descriptors.extend(handles(host, arena)?);
            let (mappings, holders) = mappings(host, arena, own)?;
            descriptors.extend(holders);
            let state = write_host(host.state()).map_err(|error| format!("the core's state: {error}"))?;
            Ok((state, mappings))
        })?;
        let handed = HandoverState {
            is_xdp: state.backend.interface().is_some(),
            fallback: state.backend.fallback_state().clone(),
            has_metrics: metrics.is_some(),
            service: state.service.clone(),
            sockets: counts,
            host,
            mappings,
            members: write_members(&members).map_err(|error| format!("the memberships: {error}"))?,
            lanes,
        };
        Ok((held, handed, descriptors))
    }

    /// Suspends the jobs' memberships.
    fn freeze_tasks(&mut self) -> Result<Vec<(JobId, SuspendedMember)>, String> {
        let state = &self.parts.state;
        let tasks: Vec<_> = state.core.call(|_, arena, _| {
            let tasks = arena.tasks.iter();
            let task =
                |(id, task): (&JobId, &TaskHandle)| (*id, task.plan.spec.job.clone(), task.events.clone());
            tasks.map(task).collect()
        });
        let mut asked = Vec::new();
        for (id, name, events) in tasks {
            let (frozen, answered) = oneshot::channel();
            let (release, released) = oneshot::channel();
            let freeze = TaskEvent::Freeze(Freeze { frozen, release: released });
            ensure!(events.send(freeze).is_ok(), format!("job {name:?} is ending"));
            self.tasks.push(release);
            asked.push((id, name, answered));
        }
        let mut members = Vec::new();
        for (id, name, answered) in asked {
            let answered = state.runtime.block_on(async { timeout(FREEZE_TIMEOUT, answered).await });
            match answered {
                Ok(Ok(member)) => {
                    let member = member.map_err(|problem| format!("job {name:?}: {problem}"))?;
                    members.extend(member.map(|member| (id, member)));
                }
                Ok(Err(_)) | Err(_) => return Err(format!("job {name:?} is ending")),
            }
        }
        Ok(members)
    }

    fn close_interface(&mut self) {
        self.is_closed = true;
        self.parts.state.backend.close_interface();
    }

    /// Ends all parts, and leaves trainers and jobs alone. Adds this process's writable mappings to `held`.
    fn hand_over(mut self, mut held: HeldRegions) -> HeldRegions {
        self.is_handed_over = true;
        let Parts { state, role, .. } = self.parts;
        let regions = state.core.call(|_, arena, _| arena.hand_over());
        regions.into_iter().for_each(|region| held.insert(region));
        for release in self.tasks.drain(..) {
            // Fails when the job has ended meanwhile, which it cannot.
            let _ = release.send(HandedOver);
        }
        state.core.notify_sessions(|| Notification::HandedOver);
        state.backend.datapath().hand_over();
        if let Some(server) = self.parts.server().take() {
            server.hand_over();
        }
        drop(role.lock().unwrap_or_else(PoisonError::into_inner).take());
        held
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if self.is_handed_over {
            return;
        }
        let state = &self.parts.state;
        if self.is_closed
            && let Err(error) = state.backend.open_interface()
        {
            tracing::error!(%error, "cannot open the interface again; its jobs end");
        }
        self.tasks.clear();
        state.backend.datapath().thaw();
        state.core.notify_sessions(|| Notification::Thaw);
        if let Some(server) = self.parts.server().as_ref() {
            server.thaw();
        }
    }
}

/// Waits for the ends of the sums of this host's ranks, of which none begins any more.
fn wait_for_sums(core: &Core) -> Result<(), String> {
    let deadline = Instant::now() + FREEZE_TIMEOUT;
    while core.call(|host, _, _| host.is_summing_any()) {
        ensure!(Instant::now() < deadline, "a sum of this host's ranks does not end".to_owned());
        std::thread::sleep(SETTLE_PAUSE);
    }
    Ok(())
}

/// Stops the sessions, after they have written all messages.
fn freeze_sessions(core: &Core) -> Result<(), String> {
    let ended = || "a trainer's connection is ending".to_owned();
    let (answer, answered) = channel();
    let outboxes = core.outboxes();
    for outbox in &outboxes {
        outbox.push(Notification::Freeze(answer.clone())).map_err(|_| ended())?;
    }
    for _ in &outboxes {
        answered.recv_timeout(FREEZE_TIMEOUT).map_err(|_| ended())?;
    }
    Ok(())
}

/// Returns the descriptors of the core's handles, in the order of [`HandoverState`].
fn handles(host: &Host, arena: &Arena) -> Result<Vec<OwnedFd>, String> {
    let mut descriptors = Vec::new();
    for (connection, credentials, _) in host.connections() {
        let missing = || format!("the connection of {credentials} is ending");
        descriptors.push(duplicate(&*arena.sessions.get(&connection).ok_or_else(missing)?.channel)?);
        for handle in host.handles(connection) {
            let event = arena.events.get(&(connection, handle)).ok_or_else(missing)?;
            descriptors.push(duplicate(&event.eventfd)?);
        }
    }
    for (region, ..) in host.regions() {
        let (file, ..) = arena.place(region).ok_or("a trainer is registering memory")?;
        descriptors.push(duplicate(file)?);
    }
    Ok(descriptors)
}

/// Returns the places of the regions' writable mappings, and the descriptors of their holders: this process
/// first.
fn mappings(host: &Host, arena: &Arena, own: Holder) -> Result<(Vec<Mapping>, Vec<OwnedFd>), String> {
    // The former holders are those of daemons that this one's predecessors were.
    let mut holders = vec![Arc::new(own)];
    holders.extend(arena.holders());
    let mut mappings = Vec::new();
    for (region, ..) in host.regions() {
        let (_, holder, address) = arena.place(region).ok_or("a trainer is registering memory")?;
        let number = holder.and_then(|holder| holders.iter().position(|known| Arc::ptr_eq(known, holder)));
        mappings.push(Mapping { holder: number.unwrap_or(0), address });
    }
    let descriptors = holders.iter().flat_map(|holder| holder.descriptors());
    Ok((mappings, descriptors.map(|fd| duplicate(&fd)).collect::<Result<_, _>>()?))
}

fn duplicate(file: &impl AsFd) -> Result<OwnedFd, String> {
    file.as_fd().try_clone_to_owned().map_err(|error| format!("cannot duplicate a descriptor: {error}"))
}
