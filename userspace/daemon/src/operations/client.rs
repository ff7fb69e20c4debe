//! The clients of a job on this host, and the ways in which they learn of an operation's end.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::access::Credentials;
use crate::session::{CompletionWord, Notification};
use crate::wake_queue::WakeQueue;

/// A connection of a job: its opener's, or one that attached.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) notes: Arc<WakeQueue<Notification>>,
    /// The number of its connection.
    pub(crate) connection: u64,
    pub(crate) handle: u64,
    pub(crate) credentials: Credentials,
}

impl Client {
    pub(crate) fn notify(&self, note: Notification) {
        // Fails when the session has ended.
        let _ = self.notes.push(note);
    }

    /// Notifies the client of an operation's end, and sets the operation's completion word before the session wakes up: the
    /// client may poll it. The session looks at its notifications before it executes a command of that client.
    pub(super) fn notify_end(&self, note: Notification, word: Option<CompletionWord>, is_complete: bool) {
        // Fails when the session has ended.
        let is_queued = self.notes.append(note).is_ok();
        if let Some(word) = word {
            word.set(is_complete);
        }
        if is_queued {
            self.notes.wake.signal();
        }
    }
}

/// A client's number in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ClientId(pub(super) u64);

impl ClientId {
    pub(crate) const OPENER: ClientId = ClientId(0);
}

/// The ways besides the event in which a client learns of an operation's end.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// The word that it polls.
    pub(crate) word: Option<CompletionWord>,
    /// When the command was read, if the times of the steps are taken.
    pub(crate) received_ns: Option<u64>,
    /// Whether the client asked for them.
    pub(crate) is_timed: bool,
}
