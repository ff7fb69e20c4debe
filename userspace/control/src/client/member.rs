//! A worker's membership of a running job: heartbeats in the background, how the job fares, and what members tell
//! each other.

use std::{future::Future, time::Duration};

use sumac_transport::PathMeasure;
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    JoinSpec, RETRY, SILENCE,
    resume::{Return, is_unknown, resume},
    session::{Answer, CallError, News, Session, Speaker},
};
use crate::{
    Announcement, Assignment, FailureKind, JobFailure, Notice, OperationOrder, Tuned,
    coordinator::{Event, Grant, Outcome, Post},
    post::{DESCRIPTION_LEN, NOTICE_LEN, OPERATION_NAME_LEN, shortened},
};

/// Bytes of posts in one call; the aggregator takes 16 KiB.
const POSTS_PER_CALL: usize = 8 << 10;

/// Between two attempts to reach a control plane that the job goes on without. Shorter than the silence after which one
/// that is back takes a worker for dead.
const LOST_RETRY: Duration = Duration::from_secs(1);

/// Bytes of the longest character.
const MAX_CHAR: usize = 4;

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
    tuned: watch::Receiver<Option<Tuned>>,
    posts: Option<mpsc::UnboundedSender<Post>>,
    notices: Option<mpsc::UnboundedReceiver<(u16, Notice)>>,
    released: Option<mpsc::UnboundedReceiver<String>>,
    renewed: Option<mpsc::UnboundedReceiver<Assignment>>,
    leave: Option<oneshot::Sender<LeaveOrder>>,
    speaking: JoinHandle<()>,
    staying: JoinHandle<()>,
}

type LeaveOrder = (Outcome, oneshot::Sender<Result<(), LeaveError>>);

impl Member {
    /// `said`: what was heard before.
    pub(super) fn start(session: Session, spec: &JoinSpec, grant: Grant, said: Vec<Event>) -> Member {
        let Grant { assignment, departed } = grant;
        let (state_to, state) = watch::channel(MemberState::Running { departed });
        let (tuned_to, tuned) = watch::channel(tuned(&assignment));
        let (notices_to, notices) = mpsc::unbounded_channel();
        let (released_to, released) = mpsc::unbounded_channel();
        let (renewed_to, renewed) = mpsc::unbounded_channel();
        let (posts, queue) = mpsc::unbounded_channel();
        let (leave, orders) = oneshot::channel();
        let (speakers_to, speakers) = mpsc::unbounded_channel();
        let mut ears = Ears {
            spec: spec.clone(),
            assignment: assignment.clone(),
            refused: None,
            speakers: speakers_to,
            renewed: renewed_to,
            state: state_to,
            tuned: tuned_to,
            notices: notices_to,
            released: released_to,
        };
        ears.listen(said);
        let speaking = tokio::spawn(speak(session.speaker(), speakers, queue, state.clone()));
        let staying = tokio::spawn(stay(session, ears, orders));
        Member {
            assignment,
            state,
            tuned,
            posts: Some(posts),
            notices: Some(notices),
            released: Some(released),
            renewed: Some(renewed),
            leave: Some(leave),
            speaking,
            staying,
        }
    }

    /// What the job got when this worker joined.
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

    /// Reports what this worker measured of its path, and waits until all have and the slots are fixed. For a job whose
    /// [`Assignment::tune`] says so; others are answered at once.
    ///
    /// # Errors
    /// When the job fails meanwhile.
    pub async fn tune(&self, measure: PathMeasure) -> Result<Tuned, JobFailure> {
        self.say(Post::Measure(measure));
        let mut tuned = self.tuned.clone();
        let known = tokio::select! {
            known = tuned.wait_for(Option::is_some) => known.ok().and_then(|tuned| tuned.clone()),
            failure = self.failed() => return Err(failure),
        };
        known.ok_or_else(|| lost("this worker left while the slots were being fixed"))
    }

    /// Tells all other members something: sent at once, in order.
    pub fn post(&self, notice: Notice) {
        let text = shortened(&notice.text, NOTICE_LEN).to_owned();
        self.say(Post::Notice(Notice { text, ..notice }));
    }

    /// Says that this worker is ready for an operation of a job whose order is by name: sent at once, in order.
    pub fn announce(&self, announcement: Announcement) {
        let description = shortened(&announcement.description, DESCRIPTION_LEN).to_owned();
        // One too long is for the aggregator to refuse, in a message that is not too long itself.
        let name = shortened(&announcement.name, OPERATION_NAME_LEN + MAX_CHAR).to_owned();
        self.say(Post::Announcement(Announcement { name, description, ..announcement }));
    }

    fn say(&self, post: Post) {
        // Nobody listens once the job has ended.
        let _ = self.posts.as_ref().map(|posts| posts.send(post));
    }

    /// The other members' notices, with their ranks. To be taken once; a second one brings nothing.
    pub fn notices(&mut self) -> mpsc::UnboundedReceiver<(u16, Notice)> {
        self.notices.take().unwrap_or_else(|| mpsc::unbounded_channel().1)
    }

    /// The names of operations that all workers have announced, in the order of the job. To be taken once; a second
    /// one brings nothing.
    pub fn released(&mut self) -> mpsc::UnboundedReceiver<String> {
        self.released.take().unwrap_or_else(|| mpsc::unbounded_channel().1)
    }

    /// What the job has from now on, each time that another worker was replaced: another epoch, and the chunks to go on
    /// from. To be taken once; a second one brings nothing.
    pub fn renewed(&mut self) -> mpsc::UnboundedReceiver<Assignment> {
        self.renewed.take().unwrap_or_else(|| mpsc::unbounded_channel().1)
    }

    /// Leaves, after what was posted has been sent: the place is free when this returns. All outcomes but
    /// [`Outcome::Done`] end the job on all others.
    pub async fn leave(mut self, outcome: Outcome) -> Result<(), LeaveError> {
        drop(self.posts.take());
        if timeout(SILENCE, &mut self.speaking).await.is_err() {
            tracing::debug!("left before all posts were sent");
        }
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
        self.speaking.abort();
        self.staying.abort();
    }
}

/// The slots, when they are final.
fn tuned(assignment: &Assignment) -> Option<Tuned> {
    let Assignment { lane_slots, tune, slots_reason, .. } = assignment;
    (!tune).then(|| Tuned { slots: *lane_slots, reason: slots_reason.clone() })
}

fn lost(message: &str) -> JobFailure {
    JobFailure { kind: FailureKind::Unknown, message: message.into(), culprit: None }
}

/// Where what a member hears goes.
struct Ears {
    spec: JoinSpec,
    /// What the worker has now.
    assignment: Assignment,
    /// Why it was not taken back last.
    refused: Option<String>,
    /// For what is to be said at another control plane.
    speakers: mpsc::UnboundedSender<Speaker>,
    renewed: mpsc::UnboundedSender<Assignment>,
    state: watch::Sender<MemberState>,
    tuned: watch::Sender<Option<Tuned>>,
    notices: mpsc::UnboundedSender<(u16, Notice)>,
    released: mpsc::UnboundedSender<String>,
}

/// Sends heartbeats until the job ends, the aggregator falls silent, or the worker leaves. A dynamic job goes on without
/// its control plane: parameter hosts and workers need none, and each worker finds out itself whether its aggregator is
/// there. To one that was started anew it returns.
async fn stay(mut session: Session, mut ears: Ears, mut orders: oneshot::Receiver<LeaveOrder>) {
    let mut last_answer = Instant::now();
    let mut is_lost = false;
    loop {
        let beat = tokio::select! {
            biased;
            order = &mut orders => return leave(order.ok(), Some(session)).await,
            beat = session.heartbeat(SILENCE) => beat,
        };
        let next = match beat {
            Ok(answer) => {
                last_answer = Instant::now();
                if std::mem::take(&mut is_lost) {
                    tracing::info!(aggregator = %session.endpoint, "the control plane answers again");
                }
                ears.hear(answer).map_or(Next::Stay(None), Next::Fail)
            }
            Err(error) if ears.is_unknown(&error, last_answer) => {
                if !std::mem::replace(&mut is_lost, true) {
                    tracing::warn!(%error, aggregator = %session.endpoint, "the control plane may have been started anew");
                }
                come_back(&session, &mut ears, &mut orders).await
            }
            Err(error) => ears.miss(&session, &error, last_answer, &mut is_lost).await,
        };
        match next {
            Next::Stay(taken) => session = taken.map_or(session, |taken| *taken),
            Next::Leave => return leave(orders.await.ok(), None).await,
            Next::Left => return,
            Next::Fail(failure) => {
                ears.state.send_replace(MemberState::Failed(failure));
                return;
            }
        }
    }
}

/// Leaves the place that this worker has, if it has one and was told to.
async fn leave(order: Option<LeaveOrder>, place: Option<Session>) {
    let Some((outcome, answer)) = order else { return };
    let left = match place {
        Some(mut session) => session.leave(&outcome, SILENCE).await.or_else(forgotten),
        None => Ok(()),
    };
    // Whoever asked may have stopped waiting.
    let _ = answer.send(left.map_err(|error| LeaveError(error.to_string())));
}

/// Returns to a control plane that does not know this worker, or ends with what was in the one before.
async fn come_back(lost: &Session, ears: &mut Ears, orders: &mut oneshot::Receiver<LeaveOrder>) -> Next {
    if ears.spec.order == OperationOrder::Name {
        return Next::Fail(JobFailure::order_lost(lost.endpoint));
    }
    let mut place = None;
    let back = tokio::select! {
        biased;
        order = &mut *orders => {
            // Nobody counts this worker as a member where it has no place yet.
            leave(order.ok(), place).await;
            return Next::Left;
        }
        back = resume(lost, &ears.spec, &ears.assignment, &mut place) => back,
    };
    ears.come_back(back)
}

/// Sends what is to be said, as many posts at once as are there; what was not answered is sent again, until the job has
/// failed: to another control plane when there is one.
async fn speak(
    mut speaker: Speaker,
    mut speakers: mpsc::UnboundedReceiver<Speaker>,
    mut queue: mpsc::UnboundedReceiver<Post>,
    mut state: watch::Receiver<MemberState>,
) {
    let mut left_over = None;
    loop {
        let Some(first) = (match left_over.take() {
            Some(post) => Some(post),
            None => queue.recv().await,
        }) else {
            return;
        };
        let mut bytes = size(&first);
        let mut posts = vec![first];
        while let Ok(post) = queue.try_recv() {
            bytes += size(&post);
            if bytes > POSTS_PER_CALL {
                left_over = Some(post);
                break;
            }
            posts.push(post);
        }
        while let Err(error) = speaker.say(&posts, SILENCE).await {
            // A denial is no reason to fall silent: it has no MAC. Heartbeats find out whether the aggregator is gone.
            tracing::debug!(%error, "posts unanswered");
            tokio::select! {
                () = sleep(RETRY) => {}
                Some(other) = speakers.recv() => speaker = other,
                _ = state.wait_for(|state| matches!(state, MemberState::Failed(_))) => return,
            }
        }
    }
}

/// About how many bytes a post has in a message.
fn size(post: &Post) -> usize {
    let text = match post {
        Post::Notice(notice) => notice.text.len(),
        Post::Announcement(announced) => announced.name.len() + announced.description.len(),
        Post::Measure(_) => 0,
    };
    text + 64
}

/// What a member does after a heartbeat.
enum Next {
    /// It stays, with another session if it has one.
    Stay(Option<Box<Session>>),
    /// It waits until it is to leave.
    Leave,
    /// It has left.
    Left,
    Fail(JobFailure),
}

impl Ears {
    /// Whether the job goes on when its control plane does not answer.
    fn outlives(&self) -> bool {
        self.assignment.dynamic.is_some()
    }

    /// Whether a member acts on the word that nobody knows it. That has no MAC: a return that was not needed costs nothing,
    /// but who would end its job waits until no authentic answer has come for long enough.
    fn is_unknown(&self, error: &CallError, last_answer: Instant) -> bool {
        let is_sure = self.spec.order == OperationOrder::Submission || last_answer.elapsed() >= SILENCE;
        self.outlives() && is_unknown(error) && is_sure
    }

    /// Takes in that a heartbeat was not answered.
    async fn miss(
        &self,
        session: &Session,
        error: &CallError,
        last_answer: Instant,
        is_lost: &mut bool,
    ) -> Next {
        let (silence, aggregator) = (last_answer.elapsed(), session.endpoint);
        if silence < SILENCE {
            tracing::debug!(%error, %aggregator, "heartbeat unanswered");
            sleep(RETRY).await;
            return Next::Stay(None);
        }
        if !self.outlives() {
            return Next::Fail(JobFailure::aggregator_silent(aggregator, silence, &error.to_string()));
        }
        if !std::mem::replace(is_lost, true) {
            tracing::warn!(%error, %aggregator, "the control plane stopped answering; the job goes on without it");
        }
        sleep(LOST_RETRY).await;
        Next::Stay(None)
    }

    /// Takes in what came of a return.
    fn come_back(&mut self, back: Return) -> Next {
        let name = &self.spec.job;
        match back {
            Return::Taken(session, answer) => {
                tracing::info!(name, aggregator = %session.endpoint, "the control plane has taken the job up again");
                // It ends only with the member.
                let _ = self.speakers.send(session.speaker());
                self.hear(answer).map_or(Next::Stay(Some(session)), Next::Fail)
            }
            // As good as departed: what waits for them will never come.
            Return::Missing(ranks) => {
                tracing::warn!(name, ?ranks, "did not come back to the control plane that was started anew");
                replace(&self.state, MemberState::Running { departed: ranks });
                Next::Leave
            }
            Return::Refused(why) => {
                if self.refused.as_ref() != Some(&why) {
                    tracing::warn!(
                        name,
                        why,
                        "the control plane does not take the job up again; going on without it"
                    );
                }
                self.refused = Some(why);
                Next::Stay(None)
            }
            Return::Failed(failure) => Next::Fail(failure),
        }
    }

    /// Takes in what the members say.
    fn listen(&mut self, events: Vec<Event>) {
        for event in events {
            // Nobody may listen to one or the other.
            match event {
                Event::Notice { rank, .. } if rank == self.spec.rank => {}
                Event::Notice { rank, notice } => drop(self.notices.send((rank, notice))),
                Event::Released(name) => drop(self.released.send(name)),
            }
        }
    }

    /// Takes in what the aggregator says; gives the failure if the job is over.
    fn hear(&mut self, answer: Answer) -> Option<JobFailure> {
        self.listen(answer.events);
        match answer.news {
            News::Running(Grant { assignment, departed }) => {
                replace(&self.state, MemberState::Running { departed });
                replace(&self.tuned, tuned(&assignment));
                if assignment.epoch != self.assignment.epoch {
                    self.assignment = assignment.clone();
                    drop(self.renewed.send(assignment));
                }
                None
            }
            News::Failed(failure) => Some(failure),
            News::Refused(refused) => Some(lost(&refused.message)),
            News::Waiting(_) | News::Left => {
                Some(lost("the aggregator no longer counts this worker as a member of the job"))
            }
        }
    }
}

/// Wakes nobody when nothing has changed.
fn replace<T: PartialEq>(known: &watch::Sender<T>, state: T) {
    known.send_if_modified(|known| {
        let is_new = *known != state;
        *known = state;
        is_new
    });
}

/// A session that the aggregator does not know is as good as left.
fn forgotten(error: CallError) -> Result<(), CallError> {
    if is_unknown(&error) { Ok(()) } else { Err(error) }
}
