//! A worker's membership of a running job: its state, and its events.

use std::{collections::VecDeque, future::Future};

use sumac_job::{JobSpec, PathMeasure};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::{
    connection::{Connection, Endpoint},
    stay::{
        LeaveError, MemberCommand, MemberState, Stay, SuspendedMember, cut, longest_restart, outlives_control,
    },
};
use crate::{
    JobFailure,
    coordinator::{Grant, MemberId, Outcome},
    events::{Event, Post},
    message::Reconnect,
};

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
            longest_outage: grant.terms.longest_outage(),
            longest_restart: longest_restart(&grant),
            outlives_control: outlives_control(&grant),
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

    /// Reports the properties of this worker's path, and waits until all have. Returns the grant with the
    /// number of slots and the backend, or one that is not measured yet, to measure UDP. For a job whose
    /// terms are not measured; others are answered at once.
    pub async fn tune(&self, measure: PathMeasure) -> Result<Grant, JobFailure> {
        let mut current = self.current.clone();
        let over_udp = current.borrow().terms.over_udp;
        self.post(Post::Measure(measure));
        let is_known = |grant: &Grant| grant.terms.is_measured || grant.terms.over_udp != over_udp;
        tokio::select! {
            known = current.wait_for(is_known) => match known {
                Ok(grant) => Ok(grant.clone()),
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

    /// The job's next grants, each time that another worker was replaced: another epoch, and the chunks to go
    /// on from. To be taken once; a second receiver is closed.
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

    /// Stands still: receives no further events, and stays alive until it is dropped. `None`: the job has
    /// ended. All events that were received are in the receiver of [`Member::events`] when this returns.
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
