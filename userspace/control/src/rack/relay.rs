//! Relays the streams of a rack's workers to the root, over the rack's own.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio::sync::{mpsc, watch};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Status, Streaming};

use crate::{
    message::{ClientMessage, ServerMessage},
    rpc::{Sending, SessionHandler},
    server::{
        connections::Ticket,
        session::{Inbound, QUEUE_LEN, ends, first_messages},
    },
};

type Queue = mpsc::Sender<Result<ServerMessage, Status>>;

/// A worker's stream, and its place among the connections.
type Worker = (Queue, Arc<Ticket>);

/// The connection to the root.
#[derive(Clone)]
pub struct Uplink {
    outbound: mpsc::WeakSender<ClientMessage>,
    workers: Arc<Mutex<HashMap<u64, Worker>>>,
}

impl Uplink {
    pub fn new(outbound: mpsc::Sender<ClientMessage>) -> Uplink {
        Uplink { outbound: outbound.downgrade(), workers: Arc::default() }
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<u64, Worker>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a message of the root; `None` ends the worker's stream.
    pub fn deliver(&self, stream: u64, message: Option<ServerMessage>) {
        let mut workers = self.workers();
        let sent = match (message, workers.get(&stream)) {
            (Some(message), Some((queue, ticket))) => {
                if matches!(message, ServerMessage::Joined { .. }) {
                    ticket.authenticate();
                }
                queue.try_send(Ok(message)).is_ok()
            }
            _ => false,
        };
        // A worker that does not read loses its stream, and not the others'.
        if !sent {
            workers.remove(&stream);
        }
    }

    /// The root is lost: all workers reconnect by themselves.
    pub fn close(&self) {
        self.workers().clear();
    }

    async fn send(&self, message: ClientMessage) -> Result<(), Status> {
        let lost = || Status::unavailable("the rack's aggregator has no connection to its root");
        let outbound = self.outbound.upgrade().ok_or_else(lost)?;
        outbound.send(message).await.map_err(|_| lost())
    }
}

/// Serves the workers of a rack.
pub struct Relay {
    uplink: watch::Receiver<Option<Uplink>>,
    closing: Arc<watch::Sender<bool>>,
    next: AtomicU64,
}

impl Relay {
    pub fn new(uplink: watch::Receiver<Option<Uplink>>, closing: Arc<watch::Sender<bool>>) -> Relay {
        Relay { uplink, closing, next: AtomicU64::new(0) }
    }
}

impl SessionHandler for Relay {
    fn session(&self, request: Request<Streaming<ClientMessage>>) -> Result<Sending<ServerMessage>, Status> {
        let (connection, addresses) = ends(&request)?;
        let stream = self.next.fetch_add(1, Relaxed);
        let (outbound, queue) = mpsc::channel(QUEUE_LEN);
        let uplink = self.uplink.borrow().clone();
        let mut closing = self.closing.subscribe();
        let mut inbound: Inbound = Box::pin(request.into_inner());
        tokio::spawn(async move {
            let relayed = async {
                let first = match first_messages(&mut inbound).await {
                    Ok(first) => first,
                    Err(denial) => {
                        let _ = outbound.send(Ok(ServerMessage::Denied(denial))).await;
                        return;
                    }
                };
                let Some(uplink) = uplink else {
                    let why = "the rack's aggregator has no connection to its root";
                    let _ = outbound.send(Err(Status::unavailable(why))).await;
                    return;
                };
                uplink.workers().insert(stream, (outbound.clone(), connection.ticket));
                if let Err(status) = relay(&uplink, stream, addresses, first, inbound, &outbound).await {
                    let _ = outbound.send(Err(status)).await;
                }
                uplink.workers().remove(&stream);
                let _ = uplink.send(ClientMessage::Relay { stream, ends: addresses, message: None }).await;
            };
            tokio::select! {
                () = relayed => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
        Ok(ReceiverStream::new(queue))
    }
}

/// Relays a worker's messages until its stream, or its place in the uplink, ends.
async fn relay(
    uplink: &Uplink,
    stream: u64,
    ends: [Ipv4Addr; 2],
    first: ClientMessage,
    mut inbound: Inbound,
    outbound: &Queue,
) -> Result<(), Status> {
    let mut next = Some(first);
    while let Some(message) = next {
        uplink.send(ClientMessage::Relay { stream, ends, message: Some(Box::new(message)) }).await?;
        next = tokio::select! {
            message = inbound.next() => message.transpose()?,
            () = outbound.closed() => None,
        };
        if !uplink.workers().contains_key(&stream) {
            return Ok(());
        }
    }
    Ok(())
}
