//! The stream of one worker, at this aggregator or relayed by a rack.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::time::{interval, timeout};
use tokio_stream::StreamExt as _;
use tonic::Status as Error;

use super::{
    Shared,
    connections::{Peer, SessionHandler},
    rack_session,
};
use crate::{
    client::connection::ALIVE_INTERVAL,
    coordinator::{Join, MemberId, Outcome, RackId},
    events::printable,
    message::{
        ClientMessage, Denial, DenialKind, Hello, JoinRequest, PROTOCOL_VERSION, Reconnect, ServerMessage,
        Status,
    },
    plane::WorkerInstall,
    rpc::{Inbound, Queue},
};

/// Time that a stream may be open before its first messages have come.
pub const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest reason that is passed on, in bytes.
pub const REASON_LEN: usize = 1024;

pub struct Sessions(pub Arc<Shared>);

impl SessionHandler for Sessions {
    async fn serve(&self, peer: Peer, mut inbound: Inbound, outbound: Queue) {
        let (shared, [ip, local]) = (&self.0, peer.ends);
        let authenticated = || peer.ticket.authenticate();
        let denial = match first_messages(&mut inbound).await {
            Ok(ClientMessage::Enter { secret, name, is_parameter_host }) => {
                let entering = rack_session::Entering { secret, name, is_parameter_host, ip };
                rack_session::serve(shared, entering, inbound, &outbound, authenticated).await
            }
            Ok(first) => {
                let caller = Caller { peer: ip, local, rack: None };
                let outbound = Outbound { sender: outbound.clone(), relay: None };
                serve_worker(shared, caller, first, inbound, &outbound, authenticated).await
            }
            Err(denial) => Err(denial),
        };
        if let Err(denial) = denial {
            shared.log_denial(ip, &denial);
            // The client may be gone.
            let _ = outbound.send(Ok(ServerMessage::Denied(denial))).await;
        }
    }
}

/// Reads the first message of a stream, and the one after it. A denial says what is wrong with them.
pub async fn first_messages(inbound: &mut Inbound) -> Result<ClientMessage, Denial> {
    let mut next = async || match timeout(FIRST_MESSAGE_TIMEOUT, inbound.next()).await {
        Ok(Some(Ok(message))) => Ok(message),
        Ok(Some(Err(error))) => Err(Denial::new(DenialKind::Request, error.message())),
        Ok(None) | Err(_) => Err(Denial::new(DenialKind::Request, "no message came")),
    };
    let (hello, own) = (next().await?, Hello::own());
    match hello {
        ClientMessage::Hello(hello) if hello.protocol == PROTOCOL_VERSION => {}
        ClientMessage::Hello(Hello { protocol, build }) => {
            let message = format!(
                "the client is of release {} (control protocol {protocol}), the aggregator of {} ({}): install the same \
                 release on both",
                printable(&build, 64),
                own.build,
                own.protocol
            );
            return Err(Denial::new(DenialKind::Version, message));
        }
        _ => return Err(Denial::new(DenialKind::Request, "the first message is no hello")),
    }
    next().await
}

#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub peer: Ipv4Addr,
    /// The aggregator's.
    pub local: Ipv4Addr,
    pub rack: Option<RackId>,
}

#[derive(Clone)]
pub struct Outbound {
    pub sender: Queue,
    /// The stream's number at the rack that relays it.
    pub relay: Option<u64>,
}

impl Outbound {
    #[expect(clippy::unnecessary_wraps, reason = "the items of an answered stream are results")]
    pub fn wrap(&self, message: ServerMessage) -> Result<ServerMessage, Error> {
        Ok(match self.relay {
            None => message,
            Some(stream) => ServerMessage::Relay { stream, message: Some(Box::new(message)) },
        })
    }

    /// Sends a message. `false`: the client is gone.
    async fn send(&self, message: ServerMessage) -> bool {
        self.sender.send(self.wrap(message)).await.is_ok()
    }
}

#[derive(Default)]
struct Sent {
    revision: u64,
    next_event: u64,
}

pub async fn serve_worker(
    shared: &Arc<Shared>,
    caller: Caller,
    first: ClientMessage,
    inbound: Inbound,
    outbound: &Outbound,
    authenticated: impl Fn(),
) -> Result<(), Denial> {
    let mut sent = Sent::default();
    let id = match first {
        ClientMessage::Join { secret, request } => {
            shared.check_secret(&request.spec.job, &secret)?;
            authenticated();
            match shared.join(caller, *request) {
                Ok(id) => id,
                Err(status) => {
                    outbound.send(ServerMessage::Status(status)).await;
                    return Ok(());
                }
            }
        }
        ClientMessage::Reconnect(Reconnect { secret, job, rank, session, received }) => {
            shared.check_secret(&job, &secret)?;
            authenticated();
            shared.update(|coordinator, now| coordinator.reconnect(now, &job, rank, session, received))?;
            sent.next_event = received;
            session
        }
        _ => return Err(Denial::new(DenialKind::Request, "a worker's stream begins with a join")),
    };
    outbound.send(ServerMessage::Joined { session: id }).await;
    exchange(shared, id, inbound, outbound, sent).await;
    shared.update(|coordinator, _| coordinator.on_disconnected(id));
    Ok(())
}

async fn exchange(shared: &Shared, id: MemberId, mut inbound: Inbound, outbound: &Outbound, mut sent: Sent) {
    let mut changed = shared.changed.subscribe();
    let mut alive = interval(ALIVE_INTERVAL);
    let mut next = None;
    loop {
        if next.is_none() {
            changed.mark_unchanged();
            next = shared.next_message(id, &mut sent);
        }
        tokio::select! {
            message = inbound.next() => match message {
                Some(Ok(message)) => {
                    if !shared.on_message(id, message) {
                        outbound.send(ServerMessage::Status(Status::Left)).await;
                        return;
                    }
                }
                Some(Err(_)) | None => return,
            },
            permit = outbound.sender.reserve(), if next.is_some() => {
                let Ok(permit) = permit else { return };
                if let Some(message) = next.take() {
                    let is_last = is_last(&message);
                    permit.send(outbound.wrap(message));
                    if is_last {
                        return;
                    }
                }
            }
            _ = changed.changed(), if next.is_none() => {}
            _ = alive.tick() => {
                let received = shared.lock().coordinator.posted(id);
                // With a full queue the client does not read anyway.
                let _ = outbound.sender.try_send(outbound.wrap(ServerMessage::Alive { received }));
            }
        }
    }
}

/// Whether nothing comes after a message.
fn is_last(message: &ServerMessage) -> bool {
    matches!(message, ServerMessage::Status(Status::Refused(_) | Status::Failed(_) | Status::Left))
}

impl Shared {
    fn check_secret(&self, job: &str, given: &crate::Secret) -> Result<(), Denial> {
        if self.secrets.accepts(job, given) {
            return Ok(());
        }
        let message =
            "the shared secret is wrong: give all workers the output of `sumac-agg token` for this job";
        Err(Denial::new(DenialKind::Secret, message))
    }

    pub fn log_denial(&self, peer: Ipv4Addr, denial: &Denial) {
        if let Some(suppressed) = self.refused.allow(std::time::Instant::now()) {
            tracing::warn!(%peer, why = denial.message, suppressed, "connection refused");
        }
    }

    fn join(&self, caller: Caller, asked: JoinRequest) -> Result<MemberId, Status> {
        let host = &asked.host;
        let ip = if host.data_ip.is_unspecified() { caller.peer } else { host.data_ip };
        let worker = WorkerInstall { ip, port: host.data_port, mac: host.mac, local_ip: caller.local };
        let request = Join { asked, worker, rack: caller.rack };
        let joined = self.update(|coordinator, now| coordinator.join(now, &request));
        let (spec, peer) = (&request.asked.spec, caller.peer);
        let (name, rank) = (printable(&spec.job, crate::JOB_NAME_LEN), spec.rank);
        match joined {
            Ok(id) => {
                tracing::info!(name, rank, %peer, "worker joined");
                Ok(id)
            }
            Err(refusal) => {
                if let Some(suppressed) = self.refused.allow(std::time::Instant::now()) {
                    tracing::warn!(name, rank, %peer, %refusal, suppressed, "join refused");
                }
                Err(Status::Refused(refusal))
            }
        }
    }

    fn next_message(&self, id: MemberId, sent: &mut Sent) -> Option<ServerMessage> {
        let coordinator = &self.lock().coordinator;
        if let Some((number, event)) = coordinator.event(id, sent.next_event) {
            sent.next_event = number + 1;
            return Some(ServerMessage::Event { number, event });
        }
        let Some((revision, status)) = coordinator.status(id) else {
            return Some(ServerMessage::Status(Status::Left));
        };
        if std::mem::replace(&mut sent.revision, revision) == revision {
            return None;
        }
        Some(ServerMessage::Status(status))
    }

    /// Takes a member's message. `false`: it has left.
    fn on_message(&self, id: MemberId, message: ClientMessage) -> bool {
        match message {
            ClientMessage::Alive { received } => self.touch(|coordinator, now| {
                coordinator.heartbeat(now, id);
                coordinator.on_received(id, received);
            }),
            ClientMessage::Posts { first, posts } => {
                self.update(|coordinator, now| coordinator.post(now, id, first, posts));
            }
            ClientMessage::Leave(outcome) => {
                let reason = |reason: String| match printable(&reason, REASON_LEN) {
                    reason if reason.is_empty() => "for no stated reason".into(),
                    reason => reason,
                };
                let outcome = match outcome {
                    Outcome::Done => Outcome::Done,
                    Outcome::Failed(why) => Outcome::Failed(reason(why)),
                    Outcome::Died(why) => Outcome::Died(reason(why)),
                };
                self.update(|coordinator, _| coordinator.leave(id, &outcome));
                return false;
            }
            // Others are no member's.
            _ => {}
        }
        true
    }
}
