//! A worker's membership of a running job: heartbeats in the background, and how the job fares.

use std::future::Future;

use thiserror::Error;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    Assignment, RETRY, SILENCE,
    session::{CallError, News, Session},
};
use crate::{
    FailureKind, JobFailure,
    coordinator::{Grant, Outcome},
};

/// How the job fares.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberState {
    /// It goes on. A sum that waits for one of `departed` will never come.
    Running {
        /// Ranks that have left because their work is done.
        departed: Vec<u16>,
    },
    /// It has ended for all.
    Failed(JobFailure),
}

/// Why the aggregator was not told of a leave. It finds out by itself within two seconds.
#[derive(Debug, Error)]
#[error("cannot tell the aggregator that this worker leaves: {0}")]
pub struct LeaveError(String);

/// A place in a running job. Dropped without [`Member::leave`], the job fails on all other ranks.
#[derive(Debug)]
pub struct Member {
    assignment: Assignment,
    state: watch::Receiver<MemberState>,
    leave: Option<oneshot::Sender<LeaveOrder>>,
    task: JoinHandle<()>,
}

type LeaveOrder = (Outcome, oneshot::Sender<Result<(), LeaveError>>);

impl Member {
    pub(super) fn start(session: Session, grant: &Grant) -> Member {
        let (tell, state) = watch::channel(MemberState::Running { departed: grant.departed.clone() });
        let (leave, orders) = oneshot::channel();
        let task = tokio::spawn(stay(session, tell, orders));
        Member { assignment: grant.into(), state, leave: Some(leave), task }
    }

    /// What the job got.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// How the job fares, now and later.
    pub fn watch(&self) -> watch::Receiver<MemberState> {
        self.state.clone()
    }

    /// Ready when the job has failed, and never otherwise. Does not borrow the member.
    pub fn failed(&self) -> impl Future<Output = JobFailure> + Send + 'static {
        let mut state = self.state.clone();
        async move {
            let failure = match state.wait_for(|state| matches!(state, MemberState::Failed(_))).await {
                Ok(state) => match &*state {
                    MemberState::Failed(failure) => Some(failure.clone()),
                    MemberState::Running { .. } => None,
                },
                // The member has left.
                Err(_) => None,
            };
            match failure {
                Some(failure) => failure,
                None => std::future::pending().await,
            }
        }
    }

    /// Leaves: the place is free when this returns. `Outcome::Failed` ends the job on all others.
    pub async fn leave(mut self, outcome: Outcome) -> Result<(), LeaveError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.leave.take().is_some_and(|leave| leave.send((outcome, answer)).is_ok());
        if !sent {
            // The job has failed: there is nothing left to leave.
            return Ok(());
        }
        answered.await.unwrap_or(Ok(()))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends heartbeats until the job ends, the aggregator falls silent, or the worker leaves.
async fn stay(
    mut session: Session,
    tell: watch::Sender<MemberState>,
    mut orders: oneshot::Receiver<LeaveOrder>,
) {
    let mut last_answer = Instant::now();
    loop {
        let beat = tokio::select! {
            biased;
            order = &mut orders => {
                if let Ok((outcome, answer)) = order {
                    let left = session.leave(&outcome, SILENCE).await;
                    // Whoever asked may have stopped waiting.
                    let _ = answer.send(left.or_else(forgotten).map_err(|error| LeaveError(error.to_string())));
                }
                return;
            }
            beat = session.heartbeat(SILENCE) => beat,
        };
        match beat {
            Ok(news) => {
                last_answer = Instant::now();
                if let Some(failure) = learn(news, &tell) {
                    tell.send_replace(MemberState::Failed(failure));
                    return;
                }
            }
            Err(error) if last_answer.elapsed() >= SILENCE => {
                let failure = JobFailure::aggregator_silent(
                    session.endpoint,
                    last_answer.elapsed(),
                    &error.to_string(),
                );
                tell.send_replace(MemberState::Failed(failure));
                return;
            }
            Err(error) => {
                tracing::debug!(%error, aggregator = %session.endpoint, "heartbeat unanswered");
                sleep(RETRY).await;
            }
        }
    }
}

/// Takes in what the aggregator says; gives the failure if the job is over.
fn learn(news: News, tell: &watch::Sender<MemberState>) -> Option<JobFailure> {
    match news {
        News::Running(grant) => {
            let state = MemberState::Running { departed: grant.departed };
            tell.send_if_modified(|known| {
                let is_new = *known != state;
                *known = state;
                is_new
            });
            None
        }
        News::Failed(failure) => Some(failure),
        News::Refused(refused) => {
            Some(JobFailure { kind: FailureKind::Unknown, message: refused.message, culprit: None })
        }
        News::Waiting(_) | News::Left => Some(JobFailure {
            kind: FailureKind::Unknown,
            message: "the aggregator no longer counts this worker as a member of the job".into(),
            culprit: None,
        }),
    }
}

/// A session that the aggregator does not know is as good as left.
fn forgotten(error: CallError) -> Result<(), CallError> {
    if matches!(error, CallError::Denied(_)) { Ok(()) } else { Err(error) }
}
