//! Commands to the data path's threads.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::handoff::HandoffQueue;
use super::snapshot::Snapshot;
use super::thread::{Command, DatapathThread};

/// The sending end of a thread's queues.
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
