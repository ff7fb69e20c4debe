//! The connections that submit operations to a job: its opener, and those that attached.

use std::sync::Arc;

use crate::session::{Credentials, Notification};
use crate::wake_queue::WakeQueue;

/// A connection of a job.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Its session's queue.
    pub(crate) notes: Arc<WakeQueue<Notification>>,
    /// The job's handle at the connection.
    pub(crate) handle: u64,
    pub(crate) credentials: Credentials,
}

impl Client {
    pub(crate) fn notify(&self, note: Notification) {
        // Fails when the session has ended.
        let _ = self.notes.push(note);
    }
}

/// A client's number in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(u64);

impl ClientId {
    /// The client that opened the job.
    pub(crate) const OPENER: ClientId = ClientId(0);
}

/// The clients of a job.
#[derive(Debug)]
pub(super) struct Clients {
    next: u64,
    clients: Vec<(ClientId, Client)>,
}

impl Clients {
    pub(super) fn new(opener: Client) -> Clients {
        Clients { next: 1, clients: vec![(ClientId::OPENER, opener)] }
    }

    pub(super) fn add(&mut self, client: Client) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        self.clients.push((id, client));
        id
    }

    pub(super) fn remove(&mut self, id: ClientId) {
        self.clients.retain(|(other, _)| *other != id);
    }

    pub(super) fn get(&self, id: ClientId) -> Option<&Client> {
        self.clients.iter().find(|(other, _)| *other == id).map(|(_, client)| client)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(ClientId, Client)> {
        self.clients.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }
}
