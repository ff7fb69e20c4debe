//! The worker's side: join a job, stay in it, leave it.

mod member;
mod resume;
pub(crate) mod session;
#[cfg(test)]
mod tests;

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use rand::{TryRngCore, rngs::OsRng};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use sumac_transport::{NonFinitePolicy, Scale, WireFormat};

use self::session::{Answer, CallError, News, Session};
pub use self::{
    member::{LeaveError, Member, MemberState},
    session::DenialKind,
};
use crate::{
    JobFailure, Mode, OperationOrder, RefusalKind, Refused, Secret,
    coordinator::{Event, Grant, LONGEST_DEADLINE, Outcome, Wishes},
    seal::NONCE_LEN,
};

/// An aggregator without an authentic answer for this long is dead.
pub const SILENCE: Duration = Duration::from_secs(2);
/// Between two attempts to reach an aggregator.
const RETRY: Duration = Duration::from_millis(200);
/// The aggregator names the missing ranks at the deadline; it has this much longer to do so.
const GRACE: Duration = Duration::from_secs(3);
/// How long a place that is taken may be the one of a process that died: [`SILENCE`], and a little more.
const HELD_PATIENCE: Duration = Duration::from_secs(3);

/// Who joins which job.
#[derive(Clone, Debug)]
pub struct JoinSpec {
    /// The job's name, the same for all workers.
    pub job: String,
    /// How many workers the job has: 1 to 32.
    pub world: u16,
    /// This worker's rank, from 0.
    pub rank: u16,
    /// The job's shared secret.
    pub secret: Secret,
    /// Where this worker's data packets come from. 0.0.0.0: the same address as the control connection.
    pub data_ip: Ipv4Addr,
    /// The UDP port for results of shard 0: the UDP backend's own, or XDP's base port.
    pub data_port: u16,
    /// This worker's MAC address; zeros with the UDP backend.
    pub mac: [u8; 6],
    /// 32-bit words in a chunk; `None`: as many as all workers and their aggregators can carry.
    pub elements: Option<u16>,
    /// The most that this worker's packets can carry.
    pub max_elements: u16,
    /// Slots of a lane, a power of two; `None`: measured, see [`Member::tune`]. Without meaning in a dynamic job.
    pub slots: Option<u32>,
    /// Shards; `None`: as many as all workers and their aggregators have.
    pub shards: Option<u16>,
    /// The most that this worker has.
    pub max_shards: u16,
    /// What floats are multiplied by before they are rounded.
    pub scaling: Scale,
    /// How many bits a float has on the wire.
    pub wire: WireFormat,
    /// What becomes of NaN and infinity.
    pub not_finite: NonFinitePolicy,
    /// In which order operations run.
    pub order: OperationOrder,
    /// Whether packets carry UDP checksums.
    pub checksum: bool,
    /// How chunks find slots.
    pub mode: Mode,
    /// How long to wait for the aggregator and for the other ranks; no more than a day.
    pub deadline: Duration,
}

impl JoinSpec {
    /// What must fit what the other ranks say. A size that is asked for by one and left open by others is everybody's.
    fn wishes(&self) -> Wishes {
        Wishes {
            world: self.world,
            elements: self.elements,
            max_elements: self.max_elements,
            slots: self.slots,
            shards: self.shards,
            max_shards: self.max_shards,
            scaling: self.scaling,
            wire: self.wire,
            not_finite: self.not_finite,
            order: self.order,
            checksum: self.checksum,
            mode: self.mode,
        }
    }
}

/// Why a worker did not get into its job.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The aggregator could not be reached before the deadline.
    #[error(
        "cannot reach the aggregator at {endpoint} within {waited:.1?}: {why}; is `sumac-agg serve` running there?"
    )]
    Unreachable {
        /// Where it should be.
        endpoint: SocketAddr,
        /// How long it was tried.
        waited: Duration,
        /// The last error.
        why: String,
    },
    /// The aggregator turned the worker away before it knew who it is: wrong secret, for instance.
    #[error("the aggregator at {endpoint} turned the worker away: {why}")]
    Denied {
        /// Who.
        endpoint: SocketAddr,
        /// What for.
        kind: DenialKind,
        /// Why.
        why: String,
    },
    /// What answers does not know the secret.
    #[error(
        "what answers at {endpoint} does not know the job's shared secret: a wrong address, or an impostor"
    )]
    Impostor {
        /// Who.
        endpoint: SocketAddr,
    },
    /// The deadline passed before all ranks had joined.
    #[error("{message}")]
    Missing {
        /// Who has not joined.
        ranks: Vec<u16>,
        /// Names the job and them.
        message: String,
    },
    /// The aggregator refused.
    #[error(transparent)]
    Refused(Refused),
    /// The job failed while it was being started.
    #[error(transparent)]
    Failed(JobFailure),
    /// The aggregator did not keep to the protocol.
    #[error("the aggregator at {endpoint} gave an answer that makes no sense: {what}")]
    Nonsense {
        /// Who.
        endpoint: SocketAddr,
        /// What.
        what: &'static str,
    },
    /// There is no randomness.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

impl From<Refused> for JoinError {
    fn from(refused: Refused) -> JoinError {
        match refused.kind {
            RefusalKind::Missing => JoinError::Missing { ranks: refused.ranks, message: refused.message },
            _ => JoinError::Refused(refused),
        }
    }
}

/// Joins a job: waits until all of its workers have joined and the aggregator has it.
///
/// A place that is still held is waited for: it may be this worker's own, of a process that died a
/// moment ago. Dropping the future gives the place up.
pub async fn join(endpoint: SocketAddr, mut spec: JoinSpec) -> Result<Member, JoinError> {
    spec.deadline = spec.deadline.min(LONGEST_DEADLINE);
    let start = Instant::now();
    loop {
        match join_once(endpoint, &spec, start).await {
            Err(JoinError::Refused(refused))
                if refused.kind == RefusalKind::RankTaken
                    && start.elapsed() + RETRY < spec.deadline.min(HELD_PATIENCE) =>
            {
                tracing::info!(job = spec.job, rank = spec.rank, %refused, "waiting for the place");
                sleep(RETRY).await;
            }
            result => return result,
        }
    }
}

async fn join_once(endpoint: SocketAddr, spec: &JoinSpec, start: Instant) -> Result<Member, JoinError> {
    let (session, mut news) = enter(endpoint, spec, start).await?;
    let mut place = Place(Some(session));
    let deadline = start + spec.deadline + GRACE;
    let mut last_answer = Instant::now();
    // What is said while this worker hears that the job runs.
    let mut said = Vec::new();
    loop {
        let missing = match news {
            News::Waiting(missing) => missing,
            News::Running(grant) => return place.keep(spec, grant, said),
            News::Refused(refused) => return Err(refused.into()),
            News::Failed(failure) => return Err(JoinError::Failed(failure)),
            News::Left => return Err(JoinError::Nonsense { endpoint, what: "the place was given up" }),
        };
        if Instant::now() >= deadline {
            let message = format!("job `{}`: still waiting for ranks {missing:?} at the deadline", spec.job);
            return Err(JoinError::Missing { ranks: missing, message });
        }
        news = match place.heartbeat().await {
            Ok(answer) => {
                last_answer = Instant::now();
                said.extend(answer.events);
                answer.news
            }
            Err(error) if last_answer.elapsed() >= SILENCE => {
                let since = last_answer.elapsed();
                return Err(JoinError::Failed(JobFailure::aggregator_silent(
                    endpoint,
                    since,
                    &error.to_string(),
                )));
            }
            Err(_) => {
                sleep(RETRY).await;
                News::Waiting(missing)
            }
        };
    }
}

/// A place among those who wait. Given up when dropped.
struct Place(Option<Session>);

impl Place {
    async fn heartbeat(&mut self) -> Result<Answer, CallError> {
        match &mut self.0 {
            Some(session) => session.heartbeat(SILENCE).await,
            None => Err(CallError::Nonsense("the place was given up")),
        }
    }

    fn keep(&mut self, spec: &JoinSpec, grant: Grant, said: Vec<Event>) -> Result<Member, JoinError> {
        let session = self.0.take().ok_or(JoinError::Failed(JobFailure {
            kind: crate::FailureKind::Unknown,
            message: "the place was given up".into(),
            culprit: None,
        }))?;
        Ok(Member::start(session, spec, grant, said))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(mut session) = self.0.take() else { return };
        // Without a runtime the aggregator finds out by itself, two seconds later.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let gone = Outcome::Failed("gave up waiting".into());
                if let Err(error) = session.leave(&gone, SILENCE).await {
                    tracing::debug!(%error, "the aggregator was not told that a worker gave up");
                }
            });
        }
    }
}

/// Knocks until somebody opens.
async fn enter(endpoint: SocketAddr, spec: &JoinSpec, start: Instant) -> Result<(Session, News), JoinError> {
    loop {
        let mut nonce = [0; NONCE_LEN];
        OsRng.try_fill_bytes(&mut nonce).map_err(|error| JoinError::Random(error.to_string()))?;
        let left = spec.deadline.saturating_sub(start.elapsed()).max(RETRY);
        let attempt = timeout(SILENCE.min(left), Session::enter(endpoint, spec, left, nonce, None)).await;
        let why = match attempt {
            Ok(Ok(entered)) => return Ok(entered),
            Ok(Err(CallError::Unreachable(why))) => why,
            Ok(Err(CallError::Denied { kind, why })) => {
                return Err(JoinError::Denied { endpoint, kind, why });
            }
            Ok(Err(CallError::NotAuthentic)) => return Err(JoinError::Impostor { endpoint }),
            Ok(Err(CallError::Nonsense(what))) => return Err(JoinError::Nonsense { endpoint, what }),
            Err(_) => "no answer".into(),
        };
        if start.elapsed() + RETRY >= spec.deadline {
            return Err(JoinError::Unreachable { endpoint, waited: start.elapsed(), why });
        }
        sleep(RETRY).await;
    }
}
