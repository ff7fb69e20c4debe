//! The aggregator of a rack: its workers join through it, and a root decides (SwitchML section 7). So do the
//! racks below it: to them it is what the root is to itself. A parameter host is below the root in the same
//! way, without workers of its own: it enters, reports, and executes commands.

use std::{
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};

use crate::{
    DataPlane, Endpoint, Identity,
    client::connection::{ALIVE_INTERVAL, ConnectError, Connection},
    coordinator::RackId,
    frames::FrameError,
    message::{ClientMessage, Denial, DenialKind, Enter, PlaneCommand, ServerMessage},
    plane::{blocking, report},
    server::{
        Listener, ServeError,
        connections::{self, Inbound, Peer, Queue, SessionHandler},
        session::first_messages,
    },
};

/// Time from an attempt to enter to the next, unless that lasted longer: so a tree whose top is gone does not
/// fill its logs.
const RETRY: Duration = Duration::from_millis(500);
/// Least time from the end of an attempt to the next.
const PAUSE: Duration = Duration::from_millis(50);
/// Time that a rack below waits for this one to enter, less than it waits for an answer. All racks of a
/// branch lose their connections with the topmost one's: each enters as soon as the one above it has.
const HOLD: Duration = Duration::from_secs(1);
/// Connections for workers that the root has not answered yet: far fewer than it admits of an address.
const MAX_OPENING: usize = 32;

/// A rack's control plane that listens already; [`RackServer::serve`] runs it.
pub struct RackServer<P> {
    listener: Listener,
    identity: Identity,
    agent: RackAgent<P>,
}

impl<P: DataPlane> RackServer<P> {
    #[must_use]
    pub fn on(
        listener: Listener,
        plane: Arc<P>,
        identity: Identity,
        parent: Endpoint,
        name: String,
    ) -> RackServer<P> {
        RackServer { listener, identity, agent: RackAgent::new(plane, parent, name, false) }
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// Serves until `stop` is ready. The root notices the end by its silence, and ends the rack's jobs by
    /// name.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let tls = self.identity.server()?;
        let agent = Arc::new(self.agent);
        let mut running = JoinSet::new();
        running.spawn({
            let agent = agent.clone();
            async move { agent.run().await }
        });
        connections::serve(self.listener.socket, tls, Arc::default(), agent.relay(), stop).await;
        drop(running);
        // Its jobs are to leave no packets unanswered: the root removes them elsewhere.
        tokio::task::spawn_blocking(move || agent.plane.take_over(&[])).await??;
        Ok(())
    }
}

struct RackAgent<P> {
    plane: Arc<P>,
    parent: Endpoint,
    enter: Enter,
    /// Whether the rack has entered. Workers' connections end with it.
    has_entered: watch::Sender<bool>,
}

/// Offers `plane` to the control plane at `parent` as a parameter host of this name (ATP section 3.6). Runs
/// until aborted.
pub async fn offer_parameter_host<P: DataPlane>(plane: P, parent: Endpoint, name: String) {
    RackAgent::new(Arc::new(plane), parent, name, true).run().await;
}

impl<P: DataPlane> RackAgent<P> {
    fn new(plane: Arc<P>, parent: Endpoint, name: String, is_parameter_host: bool) -> RackAgent<P> {
        let enter = Enter { secret: parent.secret.clone(), name, is_parameter_host };
        RackAgent { plane, parent, enter, has_entered: watch::Sender::new(false) }
    }

    fn relay(&self) -> Relay {
        Relay {
            has_entered: self.has_entered.subscribe(),
            parent: self.parent.clone(),
            rack: self.enter.clone(),
            opening: Semaphore::new(MAX_OPENING),
        }
    }

    async fn run(&self) {
        let mut logged = String::new();
        loop {
            let (address, began) = (self.parent.address, Instant::now());
            let mut has_entered = false;
            let error = match self.enter().await {
                Ok(connection) => self.serve(connection, &mut has_entered).await.to_string(),
                Err(error) => error.to_string(),
            };
            if has_entered {
                tracing::warn!(parent = %address, error, "lost the aggregator above; entering again");
            } else if error != logged {
                tracing::warn!(parent = %address, error, "cannot enter below the aggregator above");
                logged = error;
            }
            sleep(RETRY.saturating_sub(began.elapsed()).max(PAUSE)).await;
        }
    }

    async fn enter(&self) -> Result<Connection, ConnectError> {
        let enter = ClientMessage::Enter(self.enter.clone());
        let mut connection = Connection::open(&self.parent, vec![enter]).await?;
        let known = loop {
            if let ServerMessage::Known(known) = connection.receive().await? {
                break known;
            }
        };
        let taken = blocking(&self.plane, move |plane| Ok((plane.take_over(&known)?, report(plane)?))).await;
        let (jobs, report) = taken.map_err(ConnectError::Unreachable)?;
        connection.send(ClientMessage::TakenOver { report, jobs }).await?;
        Ok(connection)
    }

    async fn serve(&self, mut connection: Connection, has_entered: &mut bool) -> ConnectError {
        let (commands, queue) = mpsc::unbounded_channel();
        let executor = tokio::spawn(execute_all(self.plane.clone(), queue, connection.outbound.clone()));
        // Ends with this call, also when it is aborted.
        let mut reporter = JoinSet::new();
        reporter.spawn(report_all(self.plane.clone(), connection.outbound.clone()));
        let error = loop {
            let message = connection.receive().await;
            if message.is_ok() && !std::mem::replace(has_entered, true) {
                let (parent, name) = (self.parent.address, &self.enter.name);
                tracing::info!(%parent, name, "entered below the aggregator above");
                self.has_entered.send_replace(true);
            }
            match message {
                // The receiver ends only after this sender.
                Ok(ServerMessage::Command(command)) => drop(commands.send(command)),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        self.has_entered.send_replace(false);
        drop((reporter, commands, connection));
        // A command that is being executed ends by itself, before the rack enters again.
        if let Err(error) = executor.await {
            tracing::error!(%error, "the execution of commands ended abnormally");
        }
        error
    }
}

async fn report_all<P: DataPlane>(plane: Arc<P>, outbound: mpsc::Sender<ClientMessage>) {
    let mut ticks = interval(ALIVE_INTERVAL);
    loop {
        ticks.tick().await;
        if outbound.send(ClientMessage::Report(blocking(&plane, report).await)).await.is_err() {
            return;
        }
    }
}

async fn execute_all<P: DataPlane>(
    plane: Arc<P>,
    mut commands: mpsc::UnboundedReceiver<PlaneCommand>,
    outbound: mpsc::Sender<ClientMessage>,
) {
    while let Some(command) = commands.recv().await {
        let result = blocking(&plane, |plane| command.execute(plane)).await;
        // The connection may be lost meanwhile.
        let _ = outbound.send(ClientMessage::Completed(result)).await;
    }
}

/// Relays the messages of the rack's workers, and of the racks below it, to its parent, each one's over a
/// connection of its own. The root sees the racks on the way by name.
struct Relay {
    has_entered: watch::Receiver<bool>,
    parent: Endpoint,
    rack: Enter,
    opening: Semaphore,
}

impl SessionHandler for Relay {
    async fn serve(&self, peer: &Peer, inbound: &mut Inbound, outbound: Queue) {
        let mut has_entered = self.has_entered.clone();
        let first = first_messages(inbound).await;
        if matches!(first, Ok(ClientMessage::Enter(_))) {
            let _ = timeout(HOLD, has_entered.wait_for(|has_entered| *has_entered)).await;
        }
        let is_below = *has_entered.borrow_and_update();
        let last = match first {
            Err(denial) => ServerMessage::Denied(denial),
            Ok(_) if !is_below => {
                let why = "the rack's aggregator has no connection to the one above it";
                ServerMessage::Unavailable(why.into())
            }
            Ok(first) => tokio::select! {
                relayed = self.relay(peer, first, inbound, &outbound) => match relayed {
                    Ok(()) => return,
                    Err(ConnectError::Denied(denial)) => ServerMessage::Denied(denial),
                    Err(error) => ServerMessage::Unavailable(error.to_string()),
                },
                // The aggregator above is lost: all below reconnect by themselves.
                _ = has_entered.changed() => return,
            },
        };
        // The worker may be gone.
        let _ = outbound.send(last).await;
    }

    fn on_denied(&self, _: Ipv4Addr, _: &Denial) {}
}

impl Relay {
    /// Relays until the worker ends its connection; the error is the root's end, or for what the worker sent.
    async fn relay(
        &self,
        peer: &Peer,
        first: ClientMessage,
        inbound: &mut Inbound,
        outbound: &Queue,
    ) -> Result<(), ConnectError> {
        // Another rack's: for a worker of it.
        let is_racks = matches!(first, ClientMessage::Relay { .. });
        let relay = ClientMessage::Relay { rack: self.rack.clone(), ends: peer.ends };
        let mut opening = self.opening.acquire().await.ok();
        let mut root = Connection::open_relay(&self.parent, vec![relay, first]).await?;
        loop {
            tokio::select! {
                message = inbound.next() => match message {
                    None | Some(Err(FrameError::Io(_))) => return Ok(()),
                    Some(Err(error)) => {
                        let denial = Denial::new(DenialKind::Request, error.to_string());
                        return Err(ConnectError::Denied(denial));
                    }
                    Some(Ok(message)) => root.send(message).await?,
                },
                // A worker that does not read is the root's to judge.
                (permit, message) = async { (outbound.reserve().await, root.receive().await) } => {
                    let (Ok(permit), message) = (permit, message?) else { return Ok(()) };
                    opening.take();
                    // The root has checked the secret.
                    if matches!(message, ServerMessage::Joined { .. } | ServerMessage::Known(_)) {
                        peer.authenticate(inbound);
                        if is_racks && !peer.ticket.relay(RackId(peer.ends[0].to_bits().into())) {
                            let why = "the rack relays as many workers as it may";
                            return Err(ConnectError::Unreachable(why.into()));
                        }
                    }
                    permit.send(message);
                }
            }
        }
    }
}
