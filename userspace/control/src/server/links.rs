//! The connections of racks and parameter hosts: commands to them, and their outcomes.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    coordinator::RackId,
    message::{Completion, PlaneCommand, ServerMessage},
    plane::{PlaneError, PlaneInfo, PlaneKind},
    rpc::Queue,
};

/// Timeout of a command: a worker that does not answer ARP takes some seconds. A rack that dies ends it earlier.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

pub type Outcome = Result<Completion, String>;

struct Link {
    ip: Ipv4Addr,
    plane: PlaneInfo,
    outbound: Queue,
    /// Ends the session when dropped.
    _session: oneshot::Sender<()>,
    last: u64,
    open: BTreeMap<u64, mpsc::Sender<Outcome>>,
}

#[derive(Clone, Default)]
pub struct Links(Arc<Mutex<HashMap<RackId, Link>>>);

/// A command, and the address and plane that it was sent to.
pub struct Pending {
    to: Option<(Ipv4Addr, PlaneInfo)>,
    outcome: mpsc::Receiver<Outcome>,
}

impl Pending {
    /// Waits for the outcome. Blocks.
    pub fn wait(self, doing: &'static str) -> Result<(Completion, PlaneInfo), PlaneError> {
        let failed = |what| PlaneError::Failed { doing, what };
        let (ip, plane) = self.to.ok_or_else(|| failed("a rack or parameter host that is gone".into()))?;
        let outcome = self.outcome.recv_timeout(COMMAND_TIMEOUT).unwrap_or_else(|error| {
            Err(match error {
                mpsc::RecvTimeoutError::Timeout => format!("no answer within {COMMAND_TIMEOUT:?}"),
                mpsc::RecvTimeoutError::Disconnected => "it is gone".into(),
            })
        });
        let role = if plane.kind == PlaneKind::Parameter { "parameter host" } else { "rack" };
        let done = outcome.map_err(|what| failed(format!("the {role} at {ip}: {what}")))?;
        Ok((done, plane))
    }
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, HashMap<RackId, Link>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rack has entered, in place of its earlier connection. The receiver is closed when this one is not to go on.
    pub fn open(
        &self,
        rack: RackId,
        ip: Ipv4Addr,
        plane: PlaneInfo,
        outbound: Queue,
    ) -> oneshot::Receiver<()> {
        let (session, closed) = oneshot::channel();
        let link = Link { ip, plane, outbound, _session: session, last: 0, open: BTreeMap::new() };
        self.lock().insert(rack, link);
        closed
    }

    /// It is gone: its commands fail.
    pub fn close(&self, rack: RackId) {
        self.lock().remove(&rack);
    }

    pub fn close_all(&self) {
        self.lock().clear();
    }

    pub fn rack(&self, rack: RackId) -> Option<(Ipv4Addr, PlaneInfo)> {
        self.lock().get(&rack).map(|link| (link.ip, link.plane.clone()))
    }

    pub fn update(&self, rack: RackId, plane: PlaneInfo) {
        if let Some(link) = self.lock().get_mut(&rack) {
            link.plane = plane;
        }
    }

    /// Sends a command. One for a rack that is gone fails.
    pub fn command(&self, rack: RackId, command: PlaneCommand) -> Pending {
        let (sender, outcome) = mpsc::channel();
        let mut links = self.lock();
        let link = links.get_mut(&rack);
        let to = link.as_ref().map(|link| (link.ip, link.plane.clone()));
        if let Some(link) = link {
            link.last += 1;
            let message = ServerMessage::Command { number: link.last, command };
            // With a full queue the rack does not read, and is about to be taken for dead.
            if link.outbound.try_send(Ok(message)).is_ok() {
                link.open.insert(link.last, sender);
            }
        }
        Pending { to, outcome }
    }

    pub fn complete(&self, rack: RackId, command: u64, outcome: Outcome) {
        let sender = self.lock().get_mut(&rack).and_then(|link| link.open.remove(&command));
        // Whoever sent it may have stopped waiting.
        let _ = sender.map(|sender| sender.send(outcome));
    }
}
