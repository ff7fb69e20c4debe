//! The connections that submit into a job: who opened it, and who came later.

use std::sync::Arc;

use crate::inbox::Inbox;
use crate::session::{Note, Peer};

/// One connection, as the job knows it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Its session's queue.
    pub(crate) inbox: Arc<Inbox<Note>>,
    /// The job's handle there.
    pub(crate) handle: u64,
    /// Who it is.
    pub(crate) peer: Peer,
}

impl Client {
    pub(crate) fn tell(&self, note: Note) {
        // Fails when the session is over, and then nobody wants to know.
        let _ = self.inbox.push(note);
    }
}

/// A client's number in its job. The one who opened it is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(u64);

/// All of a job's.
#[derive(Debug)]
pub(crate) struct Clients {
    next: u64,
    here: Vec<(ClientId, Client)>,
}

impl Clients {
    pub(crate) fn new(opener: Client) -> Clients {
        Clients { next: 1, here: vec![(ClientId::OPENER, opener)] }
    }

    pub(crate) fn add(&mut self, client: Client) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        self.here.push((id, client));
        id
    }

    pub(crate) fn remove(&mut self, id: ClientId) {
        self.here.retain(|(other, _)| *other != id);
    }

    pub(crate) fn get(&self, id: ClientId) -> Option<&Client> {
        self.here.iter().find(|(other, _)| *other == id).map(|(_, client)| client)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(ClientId, Client)> {
        self.here.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.here.len()
    }
}

impl ClientId {
    /// Who opened the job.
    pub(crate) const OPENER: ClientId = ClientId(0);
}
