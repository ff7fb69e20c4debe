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
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::{
    message::{ClientMessage, ServerMessage},
    rpc::{Inbound, Queue},
    server::{
        connections::{Peer, SessionHandler, Ticket},
        session::first_messages,
    },
};

/// A worker's stream, and its place among the connections.
type Worker = (Queue, Arc<Ticket>);

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
        let outbound = self.outbound.upgrade().ok_or_else(no_uplink)?;
        outbound.send(message).await.map_err(|_| no_uplink())
    }
}

pub struct Relay {
    uplink: watch::Receiver<Option<Uplink>>,
    next: AtomicU64,
}

impl Relay {
    pub fn new(uplink: watch::Receiver<Option<Uplink>>) -> Relay {
        Relay { uplink, next: AtomicU64::new(0) }
    }
}

impl SessionHandler for Relay {
    async fn serve(&self, peer: Peer, mut inbound: Inbound, outbound: Queue) {
        let stream = self.next.fetch_add(1, Relaxed);
        let uplink = self.uplink.borrow().clone();
        let first = match first_messages(&mut inbound).await {
            Ok(first) => first,
            Err(denial) => {
                let _ = outbound.send(Ok(ServerMessage::Denied(denial))).await;
                return;
            }
        };
        let Some(uplink) = uplink else {
            let _ = outbound.send(Err(no_uplink())).await;
            return;
        };
        uplink.workers().insert(stream, (outbound.clone(), peer.ticket));
        if let Err(status) = relay(&uplink, stream, peer.ends, first, inbound, &outbound).await {
            let _ = outbound.send(Err(status)).await;
        }
        uplink.workers().remove(&stream);
        let _ = uplink.send(ClientMessage::Relay { stream, ends: peer.ends, message: None }).await;
    }
}

fn no_uplink() -> Status {
    Status::unavailable("the rack's aggregator has no connection to its root")
}

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
