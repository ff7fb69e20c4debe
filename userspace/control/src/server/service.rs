//! The four calls: each passes the gate, changes the coordinator, and answers under the session's key.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use prost::Message;
use rand::{TryRngCore, rngs::OsRng};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status as Denial};

use super::{Shared, noise::Noise};
use crate::{
    convert,
    coordinator::{MemberId, Outcome, Status},
    gate::Rejected,
    rpc::{self, control_server::Control},
    seal::{Key, Purpose},
};

/// How long a heartbeat may wait for news: clients send the next one when it is answered.
const LONG_POLL: Duration = Duration::from_millis(500);
/// Longest reason of a leave that is passed on, in bytes.
const LONGEST_REASON: usize = 512;

/// The service, one for all connections.
pub struct Service {
    shared: Arc<Shared>,
    turned_away: Noise,
}

impl Service {
    pub fn new(shared: Arc<Shared>) -> Service {
        let turned_away = Noise::new(shared.start);
        Service { shared, turned_away }
    }

    fn denied(&self, peer: Ipv4Addr, why: Rejected) -> Denial {
        if let Some(untold) = self.turned_away.tell(std::time::Instant::now()) {
            tracing::warn!(%peer, %why, untold, "message turned away");
        }
        match why {
            Rejected::Malformed => Denial::invalid_argument(why.to_string()),
            Rejected::WrongSecret => Denial::unauthenticated(why.to_string()),
            Rejected::StaleCookie | Rejected::Replayed => Denial::permission_denied(why.to_string()),
            Rejected::UnknownSession => Denial::not_found(why.to_string()),
            Rejected::Busy => Denial::resource_exhausted(why.to_string()),
        }
    }

    /// Answers as soon as the member's revision is not `known`, or after [`LONG_POLL`].
    async fn news(&self, member: MemberId, known: u64) -> (u64, Status) {
        let deadline = Instant::now() + LONG_POLL;
        let mut news = self.shared.news.subscribe();
        loop {
            let (revision, status) =
                self.shared.lock().coordinator.status(member).unwrap_or((0, Status::Left));
            if revision != known || Instant::now() >= deadline {
                return (revision, status);
            }
            // Either way the loop looks again.
            let _ = timeout_at(deadline, news.changed()).await;
        }
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
        let (peer, local) = (ipv4(request.remote_addr())?, ipv4(request.local_addr())?);
        let now = self.shared.now();
        let (key, member, revision, status) = {
            let mut state = self.shared.lock();
            let (join, key) =
                state.gate.join(now, request.get_ref()).map_err(|why| self.denied(peer, why))?;
            let joined = convert::join_request(&join, peer, local)
                .and_then(|request| state.coordinator.join(now, &request));
            match joined {
                Ok(member) => {
                    tracing::info!(name = join.job, rank = join.rank, %peer, "worker joined");
                    state.gate.open_session(member, key.clone());
                    let (revision, status) = state.coordinator.status(member).unwrap_or((0, Status::Left));
                    (key, member, revision, status)
                }
                Err(refusal) => {
                    tracing::warn!(name = join.job, rank = join.rank, %peer, %refusal, "join refused");
                    (key, MemberId(0), 0, Status::Refused(refusal))
                }
            }
        };
        self.shared.announce();
        Ok(sealed(&key, member, 0, revision, &status))
    }

    async fn heartbeat(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let peer = ipv4(request.remote_addr())?;
        let (member, body, key) = {
            let mut state = self.shared.lock();
            let (member, body, key) = state
                .gate
                .session(Purpose::Heartbeat, request.get_ref())
                .map_err(|why| self.denied(peer, why))?;
            state.coordinator.heartbeat(self.shared.now(), member);
            (member, body, key)
        };
        let (revision, status) = self.news(member, body.revision).await;
        Ok(sealed(&key, member, body.counter, revision, &status))
    }

    async fn leave(&self, request: Request<rpc::Sealed>) -> Result<Response<rpc::Sealed>, Denial> {
        let peer = ipv4(request.remote_addr())?;
        let (member, body, key) = {
            let mut state = self.shared.lock();
            let (member, body, key) = state
                .gate
                .session(Purpose::Leave, request.get_ref())
                .map_err(|why| self.denied(peer, why))?;
            let reason = body.leave.as_ref().map(|leave| leave.reason.as_str()).unwrap_or_default();
            let outcome =
                if reason.is_empty() { Outcome::Done } else { Outcome::Failed(shortened(reason).into()) };
            state.coordinator.leave(member, &outcome);
            (member, body, key)
        };
        self.shared.announce();
        Ok(sealed(&key, member, body.counter, 0, &Status::Left))
    }
}

fn sealed(
    key: &Key,
    member: MemberId,
    counter: u64,
    revision: u64,
    status: &Status,
) -> Response<rpc::Sealed> {
    let reply = convert::status_reply(key, member.0, counter, revision, status);
    Response::new(key.seal(Purpose::Reply, reply.encode_to_vec()))
}

fn ipv4(address: Option<std::net::SocketAddr>) -> Result<Ipv4Addr, Denial> {
    match address.map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V4(ip)) => Ok(ip),
        _ => Err(Denial::failed_precondition("the control plane needs IPv4 addresses on both ends")),
    }
}

/// Cuts at a character's border.
fn shortened(reason: &str) -> &str {
    let end = (0..=reason.len().min(LONGEST_REASON)).rev().find(|end| reason.is_char_boundary(*end));
    &reason[..end.unwrap_or(0)]
}
