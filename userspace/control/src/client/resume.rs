//! A member's return: its control plane was started anew, and does not know it.
//!
//! It joins with what it had. When all members have, and the parameter hosts keep what they had summed, the job goes on
//! there as it was, and gets its aggregators back.

use std::time::Duration;

use rand::{TryRngCore, rngs::OsRng};
use tokio::time::{Instant, sleep, timeout};

use super::{
    JoinSpec, RETRY, SILENCE,
    session::{Answer, CallError, DenialKind, News, Session},
};
use crate::{Assignment, FailureKind, JobFailure, RefusalKind, Refused, seal::NONCE_LEN};

/// How long the other members, and the parameter hosts, have to come back.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two attempts, each of which comes after a heartbeat: the control plane may have the name in use. Shorter than
/// the silence after which it takes a worker for dead that it knows after all.
const PAUSE: Duration = Duration::from_secs(1);

/// What came of it.
pub(super) enum Return {
    /// The job goes on there.
    Taken(Box<Session>, Answer),
    /// These ranks did not come back; nobody shall try again.
    Missing(Vec<u16>),
    /// Not now.
    Refused(String),
    /// The job has ended.
    Failed(JobFailure),
}

/// Whether an error means that the control plane does not know the session. Anybody could have said so.
pub(super) fn is_unknown(error: &CallError) -> bool {
    matches!(error, CallError::Denied { kind: DenialKind::Unknown, .. })
}

/// Tries once, and pauses when it comes to nothing. `place`: what there is to leave when this is not waited for any more.
pub(super) async fn resume(
    lost: &Session,
    spec: &JoinSpec,
    had: &Assignment,
    place: &mut Option<Session>,
) -> Return {
    let back =
        attempt(lost, spec, had, place).await.unwrap_or_else(|error| Return::Refused(error.to_string()));
    if matches!(back, Return::Refused(_)) {
        sleep(PAUSE).await;
    }
    back
}

async fn attempt(
    lost: &Session,
    spec: &JoinSpec,
    had: &Assignment,
    place: &mut Option<Session>,
) -> Result<Return, CallError> {
    let mut nonce = [0; NONCE_LEN];
    OsRng.try_fill_bytes(&mut nonce).map_err(|error| CallError::Unreachable(error.to_string()))?;
    let entering = Session::enter(lost.endpoint, spec, PATIENCE, nonce, Some(had));
    let (session, mut news) = timeout(SILENCE, entering).await.map_err(|_| super::session::no_answer())??;
    let session = place.insert(session);
    let mut last_answer = Instant::now();
    let mut events = Vec::new();
    loop {
        match news {
            News::Waiting(_) => {}
            News::Running(_) => {
                let session = place.take().ok_or(CallError::Nonsense("the place was given up"))?;
                return Ok(Return::Taken(Box::new(session), Answer { news, events }));
            }
            News::Refused(Refused { kind: RefusalKind::Missing, ranks, .. }) => {
                return Ok(Return::Missing(ranks));
            }
            News::Refused(Refused { kind: RefusalKind::Over, message, .. }) => {
                let failure = JobFailure { kind: FailureKind::Silent, message, culprit: Some(spec.rank) };
                return Ok(Return::Failed(failure));
            }
            News::Refused(refused) => return Ok(Return::Refused(refused.message)),
            News::Failed(failure) => return Ok(Return::Failed(failure)),
            News::Left => return Err(CallError::Nonsense("the place was given up")),
        }
        news = match session.heartbeat(SILENCE).await {
            Ok(answer) => {
                last_answer = Instant::now();
                events.extend(answer.events);
                answer.news
            }
            Err(error) if last_answer.elapsed() >= SILENCE || is_unknown(&error) => return Err(error),
            Err(_) => {
                sleep(RETRY).await;
                News::Waiting(Vec::new())
            }
        };
    }
}
