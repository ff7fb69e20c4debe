//! The task that keeps a worker's membership of a running job: its connection, and the next when that is
//! lost.

use std::{collections::VecDeque, future, iter, time::Duration};

use serde::{Deserialize, Serialize};
use sumac_job::{Mode, OperationOrder};
use thiserror::Error;
use tokio::{
    sync::{
        mpsc,
        oneshot::{self, error::RecvError},
        watch,
    },
    time::{Instant, sleep, timeout},
};

use super::connection::{ConnectError, Connection, Endpoint, RETRY, no_answer};
use crate::{
    FailureKind, JobFailure,
    coordinator::{Grant, MemberId, Outcome, SILENCE_TIMEOUT},
    events::{Announcement, Event, Fault, OPERATION_NAME_LEN, Post, TEXT_LEN, shortened},
    message::{ClientMessage, End, Reconnect, ServerMessage, Status},
    plane::PlaneKind,
};

/// Time that a static job continues without the process that is its control plane and its aggregator: its
/// slots have ended with it.
const HOST_RECONNECT_TIMEOUT: Duration = Duration::from_secs(4);
const LOST_RETRY: Duration = Duration::from_secs(1);
const POSTS_PER_MESSAGE: usize = 64;
/// Bytes of the longest character.
const MAX_CHAR: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub enum MemberState {
    /// It goes on. A sum that waits for one of `departed` will never come.
    Running {
        departed: Vec<u16>,
    },
    Failed(JobFailure),
}

/// The reason that the aggregator did not confirm a leave. It finds out by itself within two seconds.
#[derive(Debug, Error)]
#[error("the aggregator did not confirm that this worker leaves: {0}")]
pub struct LeaveError(String);

/// The end of a membership's connection.
#[derive(Debug)]
pub(super) enum MemberCommand {
    Leave(Outcome, oneshot::Sender<Result<(), LeaveError>>),
    Suspend(oneshot::Sender<SuspendedMember>),
}

/// A membership that stands still, from which another process, or this one, continues
/// ([`super::Member::resume`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SuspendedMember {
    pub(super) session: MemberId,
    /// The events that were received.
    pub(super) received: u64,
    /// The number of the first unconfirmed post.
    pub(super) posted: u64,
    pub(super) unconfirmed: VecDeque<Post>,
    pub(super) grant: Grant,
    pub(super) departed: Vec<u16>,
}

impl SuspendedMember {
    /// Queues a post for the next connection.
    pub fn post(&mut self, post: Post) {
        self.unconfirmed.push_back(cut(post));
    }

    /// The job's terms at last, with this worker's own part.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }
}

pub(super) struct Stay {
    pub endpoint: Endpoint,
    pub membership: Reconnect,
    /// The time without an answer after which a job that does not outlive its control plane fails.
    pub longest_outage: Duration,
    /// The same where the control plane's host answers that it does not run.
    pub longest_restart: Duration,
    /// Whether the job goes on while its control plane does not answer: parameter hosts and workers need
    /// none.
    pub outlives_control: bool,
    /// The number of the first post in `unconfirmed`.
    pub posted: u64,
    pub unconfirmed: VecDeque<Post>,
    pub state: watch::Sender<MemberState>,
    pub connected: watch::Sender<bool>,
    pub current: watch::Sender<Grant>,
    pub events: mpsc::UnboundedSender<Event>,
    pub renewed: mpsc::UnboundedSender<Grant>,
}

/// The time that a job goes on while its control plane does not run.
pub(super) fn longest_restart(grant: &Grant) -> Duration {
    match grant.placement.aggregator {
        PlaneKind::Host => HOST_RECONNECT_TIMEOUT,
        PlaneKind::Ebpf | PlaneKind::P4 | PlaneKind::None | PlaneKind::Parameter => {
            grant.terms.longest_outage()
        }
    }
}

/// Whether a job goes on however long that is.
pub(super) fn outlives_control(grant: &Grant) -> bool {
    grant.terms.mode != Mode::Static && grant.terms.order == OperationOrder::Submission
}

enum Ended {
    Failed(JobFailure),
    Lost(ConnectError),
}

impl From<ConnectError> for Ended {
    fn from(error: ConnectError) -> Ended {
        Ended::Lost(error)
    }
}

impl Stay {
    pub async fn run(
        mut self,
        mut connection: Option<Connection>,
        mut queue: mpsc::UnboundedReceiver<Post>,
        mut command: oneshot::Receiver<MemberCommand>,
    ) {
        let mut lost_at = Instant::now();
        loop {
            let ended = match connection.take() {
                Some(connection) => {
                    self.connected.send_replace(true);
                    let ended = self.serve(connection, &mut queue, &mut command).await;
                    self.connected.send_replace(false);
                    lost_at = Instant::now();
                    ended
                }
                None => tokio::select! {
                    biased;
                    command = &mut command => {
                        self.unconfirmed.extend(iter::from_fn(|| queue.try_recv().ok()));
                        return self.obey(None, command).await;
                    }
                    reconnected = self.reconnect() => match reconnected {
                        Ok(again) => {
                            connection = Some(again);
                            continue;
                        }
                        Err(ended) => Err(ended),
                    },
                },
            };
            let failure = match ended {
                Ok(()) => return,
                Err(Ended::Failed(failure)) => failure,
                Err(Ended::Lost(error)) => {
                    let (silence, address) = (lost_at.elapsed(), self.endpoint.address);
                    tracing::debug!(%error, %address, ?silence, "the control plane does not answer");
                    let limit = match error {
                        ConnectError::Refused(_) => self.longest_restart,
                        _ => self.longest_outage,
                    };
                    if self.outlives_control || silence < limit {
                        sleep(if silence < limit { RETRY } else { LOST_RETRY }).await;
                        continue;
                    }
                    let message =
                        format!("aggregator {address} stopped answering {silence:.1?} ago ({error})");
                    JobFailure::new(FailureKind::AggregatorSilent, &[], message)
                }
            };
            self.state.send_replace(MemberState::Failed(failure));
            return;
        }
    }

    async fn reconnect(&self) -> Result<Connection, Ended> {
        let reconnect = ClientMessage::Reconnect(self.membership.clone());
        let mut connection = Connection::open(&self.endpoint, vec![reconnect]).await?;
        loop {
            match connection.receive().await? {
                ServerMessage::Joined { .. } => {
                    let (job, aggregator) = (&self.membership.job, self.endpoint.address);
                    tracing::info!(job, %aggregator, "the control plane answers again");
                    return Ok(connection);
                }
                ServerMessage::Status(Status::Over(end)) => return Err(Ended::Failed(failure_of(end))),
                _ => {}
            }
        }
    }

    /// Serves the membership until it has left.
    async fn serve(
        &mut self,
        mut connection: Connection,
        queue: &mut mpsc::UnboundedReceiver<Post>,
        command: &mut oneshot::Receiver<MemberCommand>,
    ) -> Result<(), Ended> {
        // Posts that were not confirmed are sent again first.
        self.send_posts(&connection, 0).await?;
        let mut confirmed = 0;
        loop {
            tokio::select! {
                biased;
                message = connection.receive() => {
                    self.on_message(message?)?;
                    let received = self.membership.received;
                    let alive = ClientMessage::Alive { received };
                    // With a full queue the next message, a keepalive at the latest, has it sent.
                    if received != confirmed && connection.outbound.try_send(alive).is_ok() {
                        confirmed = received;
                    }
                }
                Some(post) = queue.recv() => {
                    let sent = self.unconfirmed.len();
                    self.unconfirmed.push_back(post);
                    self.unconfirmed.extend(iter::from_fn(|| queue.try_recv().ok()));
                    self.send_posts(&connection, sent).await?;
                }
                command = &mut *command => {
                    self.unconfirmed.extend(iter::from_fn(|| queue.try_recv().ok()));
                    self.obey(Some(connection), command).await;
                    return Ok(());
                }
            }
        }
    }

    async fn send_posts(&self, connection: &Connection, from: usize) -> Result<(), ConnectError> {
        let mut first = self.posted + from as u64;
        let unsent: Vec<Post> = self.unconfirmed.iter().skip(from).cloned().collect();
        for posts in unsent.chunks(POSTS_PER_MESSAGE) {
            connection.send(ClientMessage::Posts { first, posts: posts.to_vec() }).await?;
            first += posts.len() as u64;
        }
        Ok(())
    }

    /// Ends the connection as commanded. There is no command when the member was dropped: the job is to
    /// notice.
    async fn obey(&self, connection: Option<Connection>, command: Result<MemberCommand, RecvError>) {
        match command {
            Ok(MemberCommand::Leave(outcome, answer)) => self.leave(connection, outcome, answer).await,
            Ok(MemberCommand::Suspend(answer)) => {
                // Whoever asked may have stopped waiting.
                let _ = answer.send(self.suspended());
                Self::hold(connection).await;
            }
            Err(_) => {}
        }
    }

    /// Keeps the connection and its keepalives until the member is dropped, and takes no messages: the
    /// coordinator keeps the events for the next connection.
    async fn hold(connection: Option<Connection>) {
        let _kept = connection;
        future::pending::<()>().await;
    }

    fn suspended(&self) -> SuspendedMember {
        let departed = match &*self.state.borrow() {
            MemberState::Running { departed } => departed.clone(),
            MemberState::Failed(_) => Vec::new(),
        };
        SuspendedMember {
            session: self.membership.session,
            received: self.membership.received,
            posted: self.posted,
            unconfirmed: self.unconfirmed.clone(),
            grant: self.current.borrow().clone(),
            departed,
        }
    }

    /// Leaves over a connection, or another.
    async fn leave(
        &self,
        connection: Option<Connection>,
        outcome: Outcome,
        answer: oneshot::Sender<Result<(), LeaveError>>,
    ) {
        let left = match self.try_leave(connection, outcome).await {
            // A membership that is over is as good as left.
            Ok(()) | Err(Ended::Failed(_) | Ended::Lost(ConnectError::Denied(_))) => Ok(()),
            Err(Ended::Lost(error)) => Err(LeaveError(error.to_string())),
        };
        // Whoever asked may have stopped waiting.
        let _ = answer.send(left);
    }

    async fn try_leave(&self, connection: Option<Connection>, outcome: Outcome) -> Result<(), Ended> {
        let mut connection = match connection {
            Some(connection) => connection,
            None => self.reconnect().await?,
        };
        self.send_posts(&connection, 0).await?;
        connection.send(ClientMessage::Leave(outcome)).await?;
        let confirmed = async {
            loop {
                let message = connection.receive().await?;
                if let ServerMessage::Status(Status::Over(End::Finished | End::Failed(_))) = message {
                    return Ok(());
                }
            }
        };
        Ok(timeout(SILENCE_TIMEOUT, confirmed).await.unwrap_or_else(|_| Err(no_answer()))?)
    }

    fn on_message(&mut self, message: ServerMessage) -> Result<(), Ended> {
        match message {
            ServerMessage::Alive { received } => {
                while self.posted < received && self.unconfirmed.pop_front().is_some() {
                    self.posted += 1;
                }
            }
            ServerMessage::Event { number, event } => self.on_event(number, event),
            ServerMessage::Status(Status::Running { grant, departed }) => {
                replace(&self.state, MemberState::Running { departed });
                let is_renewed = grant.terms.epoch != self.current.borrow().terms.epoch;
                if is_renewed {
                    let _ = self.renewed.send((*grant).clone());
                }
                replace(&self.current, *grant);
            }
            ServerMessage::Status(Status::Over(end)) => {
                return Err(Ended::Failed(failure_of(end)));
            }
            // While the planes change to a replacement.
            _ => {}
        }
        Ok(())
    }

    pub fn on_event(&mut self, number: u64, event: Event) {
        if number >= self.membership.received {
            self.membership.received = number + 1;
            // The job may have no receiver of events.
            let _ = self.events.send(event);
        }
    }
}

fn failure_of(end: End) -> JobFailure {
    match end {
        End::Failed(failure) => failure,
        End::Refused(refused) => JobFailure::no_member(refused.message),
        End::Finished => {
            JobFailure::no_member("the aggregator no longer counts this worker as a member of the job")
        }
    }
}

/// Shortens a post's texts.
pub(super) fn cut(post: Post) -> Post {
    let cut = |text: &str| shortened(text, TEXT_LEN).to_owned();
    match post {
        Post::Announce(announced) => Post::Announce(Announcement {
            description: cut(&announced.description),
            // One too long is for the coordinator to refuse, in a message that is not too long itself.
            name: shortened(&announced.name, OPERATION_NAME_LEN + MAX_CHAR).to_owned(),
            ..announced
        }),
        Post::Fault(fault) => Post::Fault(Fault { problem: cut(&fault.problem), ..fault }),
        post => post,
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
