//! A worker's membership of a running job: the connection in the background, the job's state, and its events.

use std::{collections::VecDeque, future::Future, iter, time::Duration};

use serde::{Deserialize, Serialize};
use sumac_job::PathMeasure;
use sumac_job::{JobSpec, Mode, OperationOrder};
use thiserror::Error;
use tokio::{
    sync::{
        mpsc,
        oneshot::{self, error::RecvError},
        watch,
    },
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    Endpoint, RETRY,
    connection::{ALIVE_INTERVAL, ConnectError, Connection, no_answer},
};
use crate::{
    FailureKind, JobFailure,
    coordinator::{Grant, MemberId, Outcome, SILENCE_TIMEOUT},
    events::{Announcement, Event, Fault, OPERATION_NAME_LEN, Post, TEXT_LEN, shortened},
    message::{ClientMessage, End, Reconnect, ServerMessage, Status},
    plane::PlaneKind,
};

/// Time that a static job continues without its control plane, which may be restarting.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same where the aggregator is the process itself, and its slots end with it.
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

/// A membership of a running job. Dropped without [`Member::leave`], the job fails on all other ranks.
#[derive(Debug)]
pub struct Member {
    grant: Grant,
    state: watch::Receiver<MemberState>,
    connected: watch::Receiver<bool>,
    current: watch::Receiver<Grant>,
    posts: mpsc::UnboundedSender<Post>,
    events: Option<mpsc::UnboundedReceiver<Event>>,
    renewed: Option<mpsc::UnboundedReceiver<Grant>>,
    command: Option<oneshot::Sender<MemberCommand>>,
    task: JoinHandle<()>,
}

/// The end of a membership's connection.
#[derive(Debug)]
enum MemberCommand {
    Leave(Outcome, oneshot::Sender<Result<(), LeaveError>>),
    Suspend(oneshot::Sender<SuspendedMember>),
}

/// A membership that stands still, from which another process, or this one, continues ([`Member::resume`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SuspendedMember {
    session: MemberId,
    /// The events that were received.
    received: u64,
    /// The number of the first unconfirmed post.
    posted: u64,
    unconfirmed: VecDeque<Post>,
    grant: Grant,
    departed: Vec<u16>,
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

impl Member {
    pub(super) fn start(
        endpoint: Endpoint,
        spec: &JobSpec,
        connection: Connection,
        session: MemberId,
        (grant, departed, events): (Grant, Vec<u16>, Vec<(u64, Event)>),
    ) -> Member {
        let (received, posted, unconfirmed) = (0, 0, VecDeque::new());
        let member = SuspendedMember { session, received, posted, unconfirmed, grant, departed };
        Member::begin(endpoint, spec, Some(connection), member, events)
    }

    /// Continues a membership: connects in the background.
    pub fn resume(endpoint: Endpoint, spec: &JobSpec, suspended: SuspendedMember) -> Member {
        Member::begin(endpoint, spec, None, suspended, Vec::new())
    }

    fn begin(
        endpoint: Endpoint,
        spec: &JobSpec,
        connection: Option<Connection>,
        suspended: SuspendedMember,
        events: Vec<(u64, Event)>,
    ) -> Member {
        let SuspendedMember { session, received, posted, unconfirmed, grant, departed } = suspended;
        let (state_to, state) = watch::channel(MemberState::Running { departed });
        let (connected_to, connected) = watch::channel(connection.is_some());
        let (current_to, current) = watch::channel(grant.clone());
        let (posts, queue) = mpsc::unbounded_channel();
        let (events_to, events_of) = mpsc::unbounded_channel();
        let (renewed_to, renewed) = mpsc::unbounded_channel();
        let (command, commanded) = oneshot::channel();
        let mut stay = Stay {
            membership: Reconnect {
                secret: endpoint.secret.clone(),
                job: spec.job.clone(),
                rank: spec.rank,
                session,
                received,
            },
            endpoint,
            reconnect_timeout: match grant.placement.aggregator {
                PlaneKind::Host => HOST_RECONNECT_TIMEOUT,
                PlaneKind::Ebpf | PlaneKind::P4 | PlaneKind::None | PlaneKind::Parameter => RECONNECT_TIMEOUT,
            },
            outlives_control: grant.terms.mode != Mode::Static
                && grant.terms.order == OperationOrder::Submission,
            posted,
            unconfirmed,
            state: state_to,
            connected: connected_to,
            current: current_to,
            events: events_to,
            renewed: renewed_to,
        };
        for (number, event) in events {
            stay.on_event(number, event);
        }
        let task = tokio::spawn(stay.run(connection, queue, commanded));
        Member {
            grant,
            state,
            connected,
            current,
            posts,
            events: Some(events_of),
            renewed: Some(renewed),
            command: Some(command),
            task,
        }
    }

    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    pub fn watch(&self) -> watch::Receiver<MemberState> {
        self.state.clone()
    }

    /// Whether the control plane answers.
    pub fn connected(&self) -> watch::Receiver<bool> {
        self.connected.clone()
    }

    /// Ready when the job has failed, and never otherwise. Does not borrow the member.
    pub fn failed(&self) -> impl Future<Output = JobFailure> + Send + 'static {
        let mut state = self.state.clone();
        async move {
            let failed = state.wait_for(|state| matches!(state, MemberState::Failed(_))).await;
            match failed.map(|state| state.clone()) {
                Ok(MemberState::Failed(failure)) => failure,
                // The member has left.
                _ => std::future::pending().await,
            }
        }
    }

    /// Reports the properties of this worker's path, and waits until all have and the slots are fixed. Returns their number
    /// and the reason for it. For a job whose terms are not measured; others are answered at once.
    pub async fn tune(&self, measure: PathMeasure) -> Result<(u32, String), JobFailure> {
        self.post(Post::Measure(measure));
        let mut current = self.current.clone();
        tokio::select! {
            known = current.wait_for(|grant| grant.terms.is_measured) => match known {
                Ok(grant) => Ok((grant.terms.slots, grant.terms.slots_reason.clone())),
                Err(_) => Err(JobFailure::no_member("this worker left while the slots were being fixed")),
            },
            failure = self.failed() => Err(failure),
        }
    }

    pub fn post(&self, post: Post) {
        // Nobody receives it once the job has ended.
        let _ = self.posts.send(cut(post));
    }

    /// The job's events. To be taken once; a second receiver is closed.
    pub fn events(&mut self) -> mpsc::UnboundedReceiver<Event> {
        self.events.take().unwrap_or_else(|| mpsc::unbounded_channel().1)
    }

    /// The job's next grants, each time that another worker was replaced: another epoch, and the chunks to go on
    /// from. To be taken once; a second receiver is closed.
    pub fn renewed(&mut self) -> mpsc::UnboundedReceiver<Grant> {
        self.renewed.take().unwrap_or_else(|| mpsc::unbounded_channel().1)
    }

    /// Leaves, after all posts were sent: the rank is free when this returns. All outcomes but
    /// [`Outcome::Done`] end the job on all others.
    pub async fn leave(mut self, outcome: Outcome) -> Result<(), LeaveError> {
        let (answer, answered) = oneshot::channel();
        let sent = self
            .command
            .take()
            .is_some_and(|command| command.send(MemberCommand::Leave(outcome, answer)).is_ok());
        if !sent {
            // The job has failed: there is nothing left to leave.
            return Ok(());
        }
        answered.await.unwrap_or(Ok(()))
    }

    /// Stands still: receives no further events, and stays alive until it is dropped. `None`: the job has ended. All events that
    /// were received are in the receiver of [`Member::events`] when this returns.
    pub async fn suspend(&mut self) -> Option<SuspendedMember> {
        let (answer, answered) = oneshot::channel();
        self.command.take()?.send(MemberCommand::Suspend(answer)).ok()?;
        answered.await.ok()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Stay {
    endpoint: Endpoint,
    membership: Reconnect,
    /// The time without a connection after which a job that does not outlive its control plane fails.
    reconnect_timeout: Duration,
    /// Whether the job goes on while its control plane does not answer: parameter hosts and workers need none.
    outlives_control: bool,
    /// The number of the first post in `unconfirmed`.
    posted: u64,
    unconfirmed: VecDeque<Post>,
    state: watch::Sender<MemberState>,
    connected: watch::Sender<bool>,
    current: watch::Sender<Grant>,
    events: mpsc::UnboundedSender<Event>,
    renewed: mpsc::UnboundedSender<Grant>,
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
    async fn run(
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
                    if self.outlives_control || silence < self.reconnect_timeout {
                        sleep(if silence < self.reconnect_timeout { RETRY } else { LOST_RETRY }).await;
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
        // Those that were not confirmed come first, once more.
        self.send_posts(&connection, 0).await?;
        loop {
            tokio::select! {
                biased;
                message = connection.receive() => {
                    self.on_message(message?)?;
                    let alive = ClientMessage::Alive { received: self.membership.received };
                    // One in a full queue is as good.
                    let _ = connection.outbound.try_send(alive);
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
                self.hold(connection).await;
            }
            Err(_) => {}
        }
    }

    /// Sends keepalives until the member is dropped, and takes no messages: the coordinator keeps the events for the next
    /// connection.
    async fn hold(&self, connection: Option<Connection>) {
        let Some(connection) = connection else { return };
        let alive = || ClientMessage::Alive { received: self.membership.received };
        while connection.outbound.send(alive()).await.is_ok() {
            sleep(ALIVE_INTERVAL).await;
        }
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

    fn on_event(&mut self, number: u64, event: Event) {
        if number >= self.membership.received {
            self.membership.received = number + 1;
            // Nobody may be interested.
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
fn cut(post: Post) -> Post {
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
