//! Commands to the data path's threads, packets that one thread passes to another, and the state of jobs on several.
//!
//! A lane belongs to one thread, and its packets should arrive on that thread's queue: by the NIC's flow steering, or
//! by the CPU that a veth's frames were redirected to. A packet of another thread's lane is copied into that thread's
//! handoff queue and counted as `crossed`.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddrV4;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};
use sumac_transport::JobError;
use sumac_wire::Header;

use super::frame_io::Received;
use super::job::{Event, EventSink};
use super::snapshot::Snapshot;
use super::thread::DatapathThread;

/// The capacity of a handoff queue. Packets beyond it are dropped, as in a NIC's queue, and retransmitted.
pub(super) const HANDOFF_CAPACITY: usize = 4096;

/// Runs on a data path thread between two rounds of its loop.
pub(super) type Command = Box<dyn FnOnce(&mut DatapathThread) + Send>;

pub(super) struct Handoff {
    from: SocketAddrV4,
    port: u16,
    header: Header,
    elements: Box<[u8]>,
    is_marked: bool,
}

impl Handoff {
    pub(super) fn received(&self) -> Received<'_> {
        let Handoff { from, port, header, ref elements, is_marked } = *self;
        Received { from, port, header, elements, is_marked }
    }
}

/// The sending end of a thread's queues.
#[derive(Clone)]
pub(super) struct Link {
    commands: Sender<Command>,
    pub(super) wake: Arc<EventFd>,
    pub(super) handoffs: Arc<ArrayQueue<Handoff>>,
    pub(super) snapshot: Arc<Snapshot>,
}

impl Link {
    pub(super) fn new() -> io::Result<(Link, Receiver<Command>)> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (commands, received) = channel();
        let handoffs = Arc::new(ArrayQueue::new(HANDOFF_CAPACITY));
        Ok((Link { commands, wake, handoffs, snapshot: Arc::default() }, received))
    }

    /// Queues a command. Returns `false` when the thread has ended.
    pub(super) fn send(&self, command: impl FnOnce(&mut DatapathThread) + Send + 'static) -> bool {
        let is_sent = self.commands.send(Box::new(command)).is_ok();
        self.wake();
        is_sent
    }

    /// Copies a packet into the thread's handoff queue. Returns `false` when the queue is full.
    pub(super) fn hand_off(&self, received: Received<'_>) -> bool {
        let Received { from, port, header, elements, is_marked } = received;
        let handoff = Handoff { from, port, header, elements: elements.into(), is_marked };
        let has_room = self.handoffs.push(handoff).is_ok();
        self.wake();
        has_room
    }

    pub(super) fn wake(&self) {
        // The counter can only be full of wake-ups that are still unread.
        let _ = self.wake.write(1);
    }
}

/// The links of all threads, by the thread's number.
pub(super) type Links = Arc<[Link]>;

pub(super) fn thread_of(lane: u16, shards: u16, threads: usize) -> usize {
    usize::from(lane % shards.max(1)) % threads.max(1)
}

/// A job whose lanes are on several threads.
struct Job {
    shards: u16,
    lanes_not_ready: usize,
    has_failed: bool,
}

/// Combines the lanes' states into one event for a job. It changes with a lane's state, never with a packet.
pub(super) struct Progress {
    jobs: Mutex<HashMap<u16, Job>>,
    links: Links,
    sink: EventSink,
}

impl Progress {
    pub(super) fn new(links: Links, sink: EventSink) -> Progress {
        Progress { jobs: Mutex::default(), links, sink }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Job>> {
        // Every statement leaves the map whole.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job with this many lanes. Returns `false` when its number is in use.
    pub(super) fn open(&self, job: u16, shards: u16, lanes: usize) -> bool {
        let mut jobs = self.lock();
        let is_free = !jobs.contains_key(&job);
        if is_free {
            jobs.insert(job, Job { shards, lanes_not_ready: lanes, has_failed: false });
        }
        is_free
    }

    pub(super) fn close(&self, job: u16) {
        self.lock().remove(&job);
    }

    pub(super) fn shards(&self, job: u16) -> Option<u16> {
        self.lock().get(&job).map(|job| job.shards)
    }

    pub(super) fn report(&self, event: Event) {
        (self.sink)(event);
    }

    /// Counts a lane as ready, and reports the job once all its lanes are.
    pub(super) fn lane_ready(&self, job: u16) {
        let mut jobs = self.lock();
        let Some(entry) = jobs.get_mut(&job) else { return };
        entry.lanes_not_ready = entry.lanes_not_ready.saturating_sub(1);
        if entry.lanes_not_ready == 0 && !entry.has_failed {
            drop(jobs);
            self.report(Event::JobReady { job });
        }
    }

    /// Fails the job and its other lanes with the first lane's error.
    pub(super) fn lane_failed(&self, job: u16, error: JobError) {
        let mut jobs = self.lock();
        let Some(entry) = jobs.get_mut(&job) else { return };
        if std::mem::replace(&mut entry.has_failed, true) {
            return;
        }
        drop(jobs);
        self.fail_lanes(job, &error);
        self.report(Event::JobFailed { job, error });
    }

    /// Fails the job's lanes on all threads. A thread that has ended has failed its lanes already.
    pub(super) fn fail_lanes(&self, job: u16, error: &JobError) {
        for link in self.links.iter() {
            let error = error.clone();
            link.send(move |thread| thread.engines.fail(job, &error));
        }
    }
}
