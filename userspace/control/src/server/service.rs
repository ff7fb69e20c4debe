//! The calls: each passes the gate, changes the coordinator, and answers under the session's key.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use prost::Message;
use rand::{TryRngCore, rngs::OsRng};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status as Denial};

use super::{
    Shared,
    limit::{Ends, Proof},
    noise::Noise,
};
use crate::{
    convert::{self, Caller},
    coordinator::{MemberId, Outcome, Status},
    gate::Rejected,
    post::printable,
    rpc::{self, control_server::Control},
    seal::{Key, Purpose},
};

/// How long a heartbeat may wait for news: clients send the next one when it is answered.
pub(super) const LONG_POLL: Duration = Duration::from_millis(500);
/// Longest reason that is passed on, of a leave or of a rack's failure, in bytes.
pub(super) const LONGEST_REASON: usize = 1024;
/// Bytes of events in one answer.
const EVENTS_PER_ANSWER: usize = 8 << 10;

/// The service, one for all connections.
pub struct Service {
    pub(super) shared: Arc<Shared>,
    turned_away: Noise,
    refused: Noise,
}

impl Service {
    pub fn new(shared: Arc<Shared>) -> Service {
        let (turned_away, refused) = (Noise::new(shared.start), Noise::new(shared.start));
        Service { shared, turned_away, refused }
    }

    /// Whether to log one more refusal, as who is refused may come again at once; and how many were not logged before.
    pub(super) fn tell_refusal(&self) -> Option<u64> {
        self.refused.tell(std::time::Instant::now())
    }

    pub(super) fn denied(&self, peer: Ipv4Addr, why: Rejected) -> Denial {
        if let Some(untold) = self.turned_away.tell(std::time::Instant::now()) {
            tracing::warn!(%peer, %why, untold, "message turned away");
        }
        match why {
            Rejected::Malformed => Denial::invalid_argument(why.to_string()),
            Rejected::WrongSecret | Rejected::WrongRackSecret => Denial::unauthenticated(why.to_string()),
            Rejected::StaleCookie | Rejected::Replayed => Denial::permission_denied(why.to_string()),
            Rejected::UnknownSession => Denial::not_found(why.to_string()),
            Rejected::NoRacks => Denial::failed_precondition(why.to_string()),
            Rejected::Busy => Denial::resource_exhausted(why.to_string()),
        }
    }

    /// Waits until the member's revision is not `known`, or there are events beyond `heard`; at most [`LONG_POLL`].
    async fn wait(&self, member: MemberId, known: u64, heard: u64) {
        let deadline = Instant::now() + LONG_POLL;
        let mut news = self.shared.news.subscribe();
        loop {
            {
                let coordinator = &self.shared.lock().coordinator;
                let revision = coordinator.revision(member).unwrap_or(0);
                if revision != known || coordinator.has_events(member, heard) || Instant::now() >= deadline {
                    return;
                }
            }
            // Either way the loop looks again.
            let _ = timeout_at(deadline, news.changed()).await;
        }
    }

    pub(super) fn do_join(&self, caller: Caller, sealed: &rpc::Sealed) -> Result<rpc::Sealed, Denial> {
        let now = self.shared.now();
        let reply = {
            let mut state = self.shared.lock();
            let (join, key) = state.gate.join(now, sealed).map_err(|why| self.denied(caller.peer, why))?;
            let joined = convert::join_request(&key, &join, caller)
                .and_then(|request| state.coordinator.join(now, &request));
            match joined {
                Ok(member) => {
                    state.gate.open_session(member, key.clone());
                    let (revision, status) = state.coordinator.status(member).unwrap_or((0, Status::Left));
                    tracing::info!(name = join.job, rank = join.rank, peer = %caller.peer, "worker joined");
                    seal(&key, Purpose::Reply, convert::status_reply(&key, member.0, 0, revision, &status))
                }
                Err(refusal) => {
                    if let Some(untold) = self.tell_refusal() {
                        let (name, rank, peer) = (&join.job, join.rank, caller.peer);
                        tracing::warn!(name, rank, %peer, %refusal, untold, "join refused");
                    }
                    seal(
                        &key,
                        Purpose::Reply,
                        convert::status_reply(&key, 0, 0, 0, &Status::Refused(refusal)),
                    )
                }
            }
        };
        self.shared.announce();
        Ok(reply)
    }

    pub(super) async fn do_heartbeat(
        &self,
        caller: Caller,
        sealed: &rpc::Sealed,
    ) -> Result<rpc::Sealed, Denial> {
        let (member, body, key, wait) = {
            let mut state = self.shared.lock();
            let opened = state.gate.session(Purpose::Heartbeat, sealed);
            let (member, body, key) = opened.map_err(|why| self.denied(caller.peer, why))?;
            state.coordinator.heartbeat(self.shared.now(), member);
            state.coordinator.heard(member, body.heard);
            (member, body, key, state.gate.wait(member))
        };
        if wait.is_some() {
            self.wait(member, body.revision, body.heard).await;
        }
        let coordinator = &self.shared.lock().coordinator;
        let (revision, status) = coordinator.status(member).unwrap_or((0, Status::Left));
        let (first_event, events) = coordinator.events(member, body.heard, EVENTS_PER_ANSWER);
        let reply = rpc::StatusReply {
            first_event,
            events: events.iter().map(convert::write_event).collect(),
            ..convert::status_reply(&key, member.0, body.counter, revision, &status)
        };
        Ok(seal(&key, Purpose::HeartbeatReply, reply))
    }

    pub(super) fn do_post(&self, caller: Caller, sealed: &rpc::Sealed) -> Result<rpc::Sealed, Denial> {
        let reply = {
            let mut state = self.shared.lock();
            let opened = state.gate.session(Purpose::Post, sealed);
            let (member, body, key) = opened.map_err(|why| self.denied(caller.peer, why))?;
            let posts = body.posts.into_iter().map(convert::read_post).collect::<Option<Vec<_>>>();
            let posts = posts.ok_or_else(|| self.denied(caller.peer, Rejected::Malformed))?;
            state.coordinator.post(self.shared.now(), member, body.first_post, posts);
            let (revision, status) = state.coordinator.status(member).unwrap_or((0, Status::Left));
            seal(
                &key,
                Purpose::PostReply,
                convert::status_reply(&key, member.0, body.counter, revision, &status),
            )
        };
        self.shared.announce();
        Ok(reply)
    }

    pub(super) fn do_leave(&self, caller: Caller, sealed: &rpc::Sealed) -> Result<rpc::Sealed, Denial> {
        let reply = {
            let mut state = self.shared.lock();
            let opened = state.gate.session(Purpose::Leave, sealed);
            let (member, body, key) = opened.map_err(|why| self.denied(caller.peer, why))?;
            let leave = body.leave.unwrap_or_default();
            let outcome = match &*printable(&leave.reason, LONGEST_REASON) {
                "" => Outcome::Done,
                reason if leave.mismatch => Outcome::Mismatch(reason.into()),
                reason if leave.died => Outcome::Died(reason.into()),
                reason => Outcome::Failed(reason.into()),
            };
            state.coordinator.leave(member, &outcome);
            seal(
                &key,
                Purpose::LeaveReply,
                convert::status_reply(&key, member.0, body.counter, 0, &Status::Left),
            )
        };
        self.shared.announce();
        Ok(reply)
    }
}

#[tonic::async_trait]
impl Control for Service {
    async fn challenge(
        &self,
        _: Request<rpc::ChallengeRequest>,
    ) -> Result<Response<rpc::ChallengeReply>, Denial> {
        let mut random = [0; 16];
        OsRng.try_fill_bytes(&mut random).map_err(|_| Denial::unavailable("no random numbers"))?;
        let cookie = self.shared.lock().gate.cookie(self.shared.now(), random);
        Ok(Response::new(rpc::ChallengeReply { cookie }))
    }

    async fn join(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let (caller, proof) = caller(&request)?;
        proof.from(self.do_join(caller, request.get_ref())).map(Response::new)
    }

    async fn heartbeat(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let (caller, proof) = caller(&request)?;
        proof.from(self.do_heartbeat(caller, request.get_ref()).await).map(Response::new)
    }

    async fn post(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let (caller, proof) = caller(&request)?;
        proof.from(self.do_post(caller, request.get_ref())).map(Response::new)
    }

    async fn leave(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let (caller, proof) = caller(&request)?;
        proof.from(self.do_leave(caller, request.get_ref())).map(Response::new)
    }

    async fn enter_rack(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let (caller, proof) = caller(&request)?;
        proof.from(self.do_enter_rack(caller.peer, request.get_ref())).map(Response::new)
    }

    async fn serve_rack(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let (caller, proof) = caller(&request)?;
        proof.from(self.do_serve_rack(caller.peer, request.get_ref()).await).map(Response::new)
    }

    async fn relay(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let (caller, proof) = caller(&request)?;
        proof.from(self.do_relay(caller.peer, request.get_ref()).await).map(Response::new)
    }
}

fn seal(key: &Key, purpose: Purpose, reply: rpc::StatusReply) -> rpc::Sealed {
    key.seal(purpose, reply.encode_to_vec())
}

/// The two ends of a call's connection, and what an answer proves for it.
pub(crate) fn caller<T>(request: &Request<T>) -> Result<(Caller, Proof), Denial> {
    let ends = request.extensions().get::<Ends>().cloned();
    let Ends { peer, local, proof } = ends.ok_or_else(|| Denial::internal("a call without a connection"))?;
    Ok((Caller { peer: ipv4(peer)?, local: ipv4(local)?, rack: None }, proof))
}

fn ipv4(address: Option<std::net::SocketAddr>) -> Result<Ipv4Addr, Denial> {
    match address.map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V4(ip)) => Ok(ip),
        _ => Err(Denial::failed_precondition("the control plane needs IPv4 addresses on both ends")),
    }
}
