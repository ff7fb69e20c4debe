//! Commands to the data path's threads.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use sumac_transport::JobError;

use super::handoff::HandoffQueue;
use super::snapshot::Snapshot;
use super::thread::{Command, DatapathThread};

/// The sending end of a thread's queues.
#[derive(Clone)]
pub(super) struct Link {
    commands: Sender<Command>,
    pub(super) handoffs: HandoffQueue,
    pub(super) snapshot: Arc<Snapshot>,
}

impl Link {
    pub(super) fn new() -> io::Result<(Link, Receiver<Command>)> {
        let (commands, received) = channel();
        Ok((Link { commands, handoffs: HandoffQueue::new()?, snapshot: Arc::default() }, received))
    }

    /// Queues a command. Returns `false` when the thread has ended.
    pub(super) fn send(&self, command: impl FnOnce(&mut DatapathThread) + Send + 'static) -> bool {
        let is_sent = self.commands.send(Box::new(command)).is_ok();
        self.handoffs.wake();
        is_sent
    }
}

/// The links of all threads, by the thread's number.
pub(super) type Links = Arc<[Link]>;

/// Fails the job's lanes on all threads. A thread that has ended has failed its lanes already.
pub(super) fn fail_lanes(links: &[Link], job: u16, error: &JobError) {
    for link in links {
        let error = error.clone();
        link.send(move |thread| thread.engines.fail(job, &error));
    }
}
