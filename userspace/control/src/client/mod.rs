//! The worker's side: join a job, stay in it, leave it.

pub(crate) mod connection;
mod member;
mod stay;

use std::{net::SocketAddr, time::Duration};

use sumac_job::JobSpec;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use self::connection::{ConnectError, Connection, RETRY};
pub use self::{
    connection::Endpoint,
    member::Member,
    stay::{LeaveError, MemberState, SuspendedMember},
};
use crate::{
    FailureKind, JobFailure, Refusal, RefusalKind, Secret,
    coordinator::MemberId,
    events::Event,
    message::{
        Attempt, ClientMessage, Denial, DenialKind, End, JoinRequest, Reconnect, ServerMessage, Status,
    },
};

/// The aggregator names the missing ranks at the deadline; it has this much longer to do so.
const DEADLINE_GRACE: Duration = Duration::from_secs(3);
/// Time after which the worker of a taken rank is not dead, unless it is silent by then.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time after which handshakes do not fail by damage to some packets.
const DAMAGE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Error)]
pub enum JoinError {
    #[error(
        "cannot reach the aggregator at {endpoint} within {waited:.1?}: {why}; is `sumac-agg serve` running \
        there?"
    )]
    Unreachable { endpoint: SocketAddr, waited: Duration, why: String },
    /// It is no server of TLS 1.3, or most packets are damaged on the way.
    #[error("the TLS handshake with the aggregator at {endpoint} fails: {why}")]
    Handshake { endpoint: SocketAddr, why: String },
    /// The server's certificate is not the one of the token, or not signed by the site's authorities.
    #[error("the aggregator at {endpoint} is not trusted: {why}")]
    NotTrusted { endpoint: SocketAddr, why: String },
    #[error("the aggregator at {endpoint} refused the worker: {why}")]
    Denied { endpoint: SocketAddr, kind: DenialKind, why: String },
    #[error(transparent)]
    Refused(Refusal),
    #[error(transparent)]
    Failed(JobFailure),
    #[error("the aggregator at {endpoint} does not keep to the protocol: {what}")]
    Protocol { endpoint: SocketAddr, what: String },
}

/// A member of a job whose other workers are awaited.
struct WaitingMember {
    session: MemberId,
    events: Vec<(u64, Event)>,
}

impl WaitingMember {
    /// The first message of another connection of the same member.
    fn reconnect(&self, secret: &Secret, spec: &JobSpec) -> ClientMessage {
        let received = self.events.last().map_or(0, |(number, _)| number + 1);
        let (secret, job) = (secret.clone(), spec.job.clone());
        ClientMessage::Reconnect(Reconnect { secret, job, rank: spec.rank, session: self.session, received })
    }
}

/// Joins a job: waits until all of its workers have joined and the aggregator has it.
///
/// After the loss of the connection the worker goes on in its place. A rank that is taken is waited for: it
/// may be this worker's own, of a process that died a moment ago. Dropping the future leaves the job.
pub async fn join(endpoint: &Endpoint, request: JoinRequest) -> Result<Member, JoinError> {
    let mut attempt = Attempt { join: rand::random(), earlier: 0 };
    let (start, spec) = (Instant::now(), &request.spec);
    let mut last_missing = Vec::new();
    let mut place = None;
    let mut lost = start;
    let mut is_reported = false;
    loop {
        let left = request.timeout().saturating_sub(start.elapsed()).max(RETRY);
        let mut asked = request.clone();
        asked.spec.timeout_s = Some(left.as_secs_f64());
        asked.attempt = Some(attempt);
        attempt.earlier += 1;
        let is_early = |timeout, since: Instant| since.elapsed() + RETRY < timeout;
        let had_place = place.is_some();
        match try_once(endpoint, &asked, start, &mut place, &mut last_missing).await {
            Err(JoinError::Refused(refused))
                if is_early(request.timeout(), start)
                    && (refused.kind == RefusalKind::RankSilent
                        || refused.kind == RefusalKind::RankTaken && is_early(TAKEN_TIMEOUT, lost)) =>
            {
                tracing::info!(job = spec.job, rank = spec.rank, %refused, "waiting for the rank");
                if refused.kind == RefusalKind::RankSilent {
                    lost = Instant::now();
                }
            }
            Err(JoinError::Unreachable { why, .. }) if is_early(request.timeout(), start) => {
                if !std::mem::replace(&mut is_reported, true) {
                    let (address, timeout) = (endpoint.address, request.timeout());
                    tracing::warn!(job = spec.job, rank = spec.rank, %address, ?timeout, why,
                        "the control plane does not answer; trying again until the join's timeout");
                }
                lost = Instant::now();
            }
            Err(JoinError::Handshake { why, .. }) if is_early(DAMAGE_TIMEOUT, lost) => {
                tracing::warn!(
                    job = spec.job,
                    rank = spec.rank,
                    why,
                    "the TLS handshake failed; trying again"
                );
            }
            Err(JoinError::Unreachable { .. }) if !last_missing.is_empty() => {
                return Err(missing(&request, &last_missing));
            }
            // It was given up: the worker was silent for too long.
            Err(JoinError::Failed(failure)) if had_place && failure.kind == FailureKind::NoMember => {
                lost = Instant::now();
                continue;
            }
            result => return result,
        }
        sleep(RETRY).await;
    }
}

fn missing(request: &JoinRequest, ranks: &[u16]) -> JoinError {
    let message = format!("job `{}`: still waiting for ranks {ranks:?} at the deadline", request.spec.job);
    JoinError::Refused(Refusal::new(RefusalKind::Missing, ranks, message))
}

impl ConnectError {
    fn of_join(self, endpoint: SocketAddr, start: Instant) -> JoinError {
        match self {
            ConnectError::Unreachable(why) | ConnectError::Refused(why) => {
                JoinError::Unreachable { endpoint, waited: start.elapsed(), why }
            }
            ConnectError::Handshake(why) => JoinError::Handshake { endpoint, why },
            ConnectError::NotTrusted(why) => JoinError::NotTrusted { endpoint, why },
            ConnectError::Denied(Denial { kind, message: why }) => JoinError::Denied { endpoint, kind, why },
            ConnectError::Protocol(what) => JoinError::Protocol { endpoint, what },
        }
    }
}

async fn try_once(
    endpoint: &Endpoint,
    request: &JoinRequest,
    start: Instant,
    place: &mut Option<WaitingMember>,
    last_missing: &mut Vec<u16>,
) -> Result<Member, JoinError> {
    let failed = |error: ConnectError| error.of_join(endpoint.address, start);
    let secret = &endpoint.secret;
    let first = match place {
        Some(place) => place.reconnect(secret, &request.spec),
        None => ClientMessage::Join { secret: secret.clone(), request: Box::new(request.clone()) },
    };
    let mut connection = Connection::open(endpoint, vec![first]).await.map_err(failed)?;
    let deadline = Instant::now() + request.timeout() + DEADLINE_GRACE;
    loop {
        match connection.receive().await.map_err(failed)? {
            ServerMessage::Joined { session } => {
                place.get_or_insert(WaitingMember { session, events: Vec::new() });
            }
            ServerMessage::Event { number, event } => {
                if let Some(place) = place {
                    place.events.push((number, event));
                }
            }
            ServerMessage::Status(status) => match (status, place.take()) {
                (Status::Waiting(missing), waiting) => (*last_missing, *place) = (missing, waiting),
                (Status::Running { grant, departed }, Some(WaitingMember { session, events })) => {
                    let running = (*grant, departed, events);
                    return Ok(Member::start(endpoint.clone(), &request.spec, connection, session, running));
                }
                (Status::Over(End::Refused(refused)), _) => return Err(JoinError::Refused(refused)),
                (Status::Over(End::Failed(failure)), _) => return Err(JoinError::Failed(failure)),
                (Status::Running { .. } | Status::Over(End::Finished), _) => {
                    let what = "this worker is no member of the job".into();
                    return Err(JoinError::Protocol { endpoint: endpoint.address, what });
                }
            },
            _ => {}
        }
        if Instant::now() >= deadline {
            return Err(missing(request, last_missing));
        }
    }
}
