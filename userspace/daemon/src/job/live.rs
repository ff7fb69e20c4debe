//! A job while it is open: what its clients, the data path and the other workers say, until something ends it.

use std::convert::Infallible;
use std::time::Duration;

use sumac_control::{Announcement, Assignment, Member, MemberState, Notice, Outcome};
use sumac_transport::JobError;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::dispute::{Dispute, Doubts, Step, Verdict};
use super::news::News;
use super::{End, Job, blocking};
use crate::line::Order;
use crate::stream::notice::{Blame, Topic};
use crate::stream::{Announced, Shape, Stream};

/// How often a job looks at what has a deadline.
const LOOK: Duration = Duration::from_millis(100);
/// How long results may still be on their way when a worker has left: it had all of them when it did.
const DEPARTURE_GRACE: Duration = Duration::from_secs(3);
/// How long the oldest operation may last before the other workers are told of it. They only hold it against what they
/// have under its number, so that one that is merely long does no harm.
const STANDSTILL: Duration = Duration::from_secs(1);
/// How long sums may stand still before the log says so. No error: another worker may still be computing.
const COMPLAINT: Duration = Duration::from_secs(10);

/// Where a job listens.
pub(super) struct Ears {
    pub(super) orders: UnboundedReceiver<Order>,
    pub(super) news: News,
    /// Names that all workers have announced.
    pub(super) released: UnboundedReceiver<String>,
}

/// See the module.
pub(super) struct Life<'a> {
    job: &'a Job,
    stream: &'a Stream,
    member: &'a Member,
    dispute: Option<Dispute>,
    doubts: Doubts,
    /// Since when operations wait for workers that have left.
    deserted: Option<Instant>,
    /// The oldest operation, since when it is, and whether the others have been told.
    oldest: Option<(u32, Instant, bool)>,
}

impl<'a> Life<'a> {
    pub(super) fn new(job: &'a Job, stream: &'a Stream, member: &'a Member) -> Life<'a> {
        Life { job, stream, member, dispute: None, doubts: Doubts::default(), deserted: None, oldest: None }
    }

    /// Waits for whatever ends the job.
    pub(super) async fn run(mut self, ears: Ears) -> End {
        let Ears { mut orders, news: News { mut notices, mut renewed }, mut released } = ears;
        let mut failed = std::pin::pin!(self.member.failed());
        let mut complaint = std::pin::pin!(complain(self.job, self.stream));
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            let end = tokio::select! {
                biased;
                failure = &mut failed => Some(self.job.theirs(&failure)),
                order = orders.recv() => self.obey(order),
                Some((rank, notice)) = notices.recv() => self.hear(rank, notice.key, &notice.text),
                Some(name) = released.recv() => {
                    self.stream.release(&self.job.hub.carrier, &name);
                    None
                }
                Some(assignment) = renewed.recv() => self.renew(assignment).await,
                _ = look.tick() => self.look(),
                never = &mut complaint => match never {},
            };
            if let Some(end) = end {
                break end;
            }
        };
        // Who has named its value by now has; the memory was given back long ago.
        for doubt in self.doubts.expire(Instant::now() + DEPARTURE_GRACE) {
            self.stream.settle(doubt);
        }
        end
    }

    /// Goes on with a newcomer in a dead worker's place.
    async fn renew(&self, assignment: Assignment) -> Option<End> {
        let (job, epoch) = (assignment.job, assignment.epoch);
        let resume = assignment.dynamic.as_ref().map(|terms| terms.resume.clone()).unwrap_or_default();
        let (hub, spec) = (self.job.hub.clone(), self.job.plan.spec.clone());
        let renewed = blocking(move || hub.carrier.renew_job(&assignment, &spec)).await;
        match renewed.and_then(|renewed| renewed) {
            Ok(()) => {
                tracing::info!(job = self.job.plan.spec.job, epoch, "a worker was replaced; going on");
                self.job.hub.routes.renew(job, epoch);
                if let Some(stand) = self.stream.stand(&resume) {
                    self.post(Topic::Stand { epoch: epoch.into() }, &stand);
                }
                None
            }
            Err(failure) => {
                let reason = format!("a worker was replaced, and this one cannot go on: {}", failure.message);
                Some(End::ours(JobError::Ended { reason }))
            }
        }
    }

    fn rank(&self) -> u16 {
        self.stream.shape().rank
    }

    fn obey(&mut self, order: Option<Order>) -> Option<End> {
        match order {
            // Its end, which comes soon, answers the close as well, and tells the clients why.
            Some(Order::Close { .. }) if self.dispute.is_some() => None,
            Some(Order::Close { request }) => Some(End::Closed { request }),
            Some(Order::Cancel { by }) => Some(End::ours(JobError::Cancelled { by })),
            Some(Order::Broken(error)) => self.broken(error),
            Some(Order::Abandon { reason }) => Some(End::died(reason)),
            Some(Order::Announce(announced)) => {
                self.announce(announced);
                None
            }
            Some(Order::Blame { number, failure }) => {
                let blame = Blame::new(failure.index, &failure.message);
                self.post(Topic::Fault { number }, &blame);
                None
            }
            Some(Order::Doubt(doubt)) => {
                if let Some(settled) = self.doubts.add(doubt) {
                    self.stream.settle(settled);
                }
                None
            }
            Some(Order::Differ) => {
                self.differ(None);
                self.step()
            }
            Some(Order::Ready | Order::Measured(_)) | None => {
                Some(End::ours(JobError::Ended { reason: "the daemon lost count".into() }))
            }
        }
    }

    /// What another daemon of the job says.
    fn hear(&mut self, rank: u16, key: u64, text: &str) -> Option<End> {
        match Topic::of(key)? {
            Topic::History { .. } => {
                let piece = read(rank, text)?;
                self.differ(None);
                self.dispute.as_mut()?.history(rank, piece);
                self.step()
            }
            Topic::Mismatch { .. } => {
                let claim = read(rank, text)?;
                self.differ(None);
                self.dispute.as_mut()?.claim(rank, claim);
                self.step()
            }
            Topic::Fault { number } => {
                for doubt in self.doubts.blame(number, rank, read(rank, text)?) {
                    self.stream.settle(doubt);
                }
                None
            }
            // For a newcomer.
            Topic::Stand { .. } => None,
            Topic::Standstill { .. } => {
                if self.stream.differs(rank, read(rank, text)?) {
                    self.differ(None);
                }
                self.step()
            }
        }
    }

    /// Begins a dispute, unless there is one, by telling what this worker has submitted. `place`: where the data
    /// path noticed.
    fn differ(&mut self, place: Option<(u16, u32)>) {
        if self.dispute.is_none() {
            let pieces = self.stream.history();
            for (number, piece) in (0..).zip(&pieces) {
                self.post(Topic::History { piece: number }, piece);
            }
            let ours =
                place.and_then(|(lane, seq)| self.stream.at(lane, seq)).or_else(|| self.stream.oldest());
            let Shape { rank, world, .. } = *self.stream.shape();
            let mut dispute = Dispute::new(rank, world, place, ours, Instant::now());
            for piece in pieces {
                dispute.history(rank, piece);
            }
            self.dispute = Some(dispute);
        }
    }

    /// Goes on with the dispute, if there is one.
    fn step(&mut self) -> Option<End> {
        let now = Instant::now();
        match self.dispute.as_mut()?.step(now) {
            Step::Wait => None,
            Step::Tell(number) => {
                let claim = self.stream.numbered(number)?;
                self.post(Topic::Mismatch { number }, &claim);
                let rank = self.rank();
                let dispute = self.dispute.as_mut()?;
                dispute.claim(rank, claim);
                match dispute.step(now) {
                    Step::Convict(verdict) => Some(self.convict(&verdict)),
                    Step::Wait | Step::Tell(_) => None,
                }
            }
            Step::Convict(verdict) => Some(self.convict(&verdict)),
        }
    }

    /// Ends the job because the workers do not do the same.
    fn convict(&self, verdict: &Verdict) -> End {
        let reason = verdict.text().to_owned();
        let failure = verdict.failure(self.job.plan.options.order);
        End::Ours {
            error: JobError::Ended { reason: reason.clone() },
            outcome: Outcome::Mismatch(reason),
            failure,
        }
    }

    /// Does what is due.
    fn look(&mut self) -> Option<End> {
        let now = Instant::now();
        for doubt in self.doubts.expire(now) {
            self.stream.settle(doubt);
        }
        self.look_at_oldest(now);
        self.step().or_else(|| self.look_at_departed(now))
    }

    /// Tells the others of the oldest operation when it does not come to an end.
    fn look_at_oldest(&mut self, now: Instant) {
        let Some(claim) = self.stream.oldest() else { return self.oldest = None };
        match &mut self.oldest {
            Some((number, since, told)) if *number == claim.number => {
                if !*told && now.duration_since(*since) >= STANDSTILL {
                    *told = true;
                    self.post(Topic::Standstill { number: claim.number }, &claim);
                }
            }
            _ => self.oldest = Some((claim.number, now, false)),
        }
    }

    /// Ends the job when operations have waited for too long for workers that have left.
    fn look_at_departed(&mut self, now: Instant) -> Option<End> {
        let departed = match &*self.member.watch().borrow() {
            MemberState::Running { departed } => departed.clone(),
            MemberState::Failed(_) => Vec::new(),
        };
        if departed.is_empty() || self.stream.outstanding() == 0 {
            self.deserted = None;
            return None;
        }
        let since = *self.deserted.get_or_insert(now);
        if now.duration_since(since) < DEPARTURE_GRACE {
            return None;
        }
        let rank = departed.first().copied().unwrap_or_default();
        let reason = format!("has left job {:?} while sums were outstanding here", self.job.plan.spec.job);
        tracing::warn!(?departed, job = self.job.plan.spec.job, "sums wait for workers that have left");
        Some(End::ours(JobError::Worker { rank, reason }))
    }

    /// The data path has ended the job; where the workers differ, what the others had is waited for.
    fn broken(&mut self, error: JobError) -> Option<End> {
        let JobError::Mismatch { lane, seq, .. } = error else { return Some(End::ours(error)) };
        self.differ(Some((lane, seq)));
        self.step()
    }

    fn announce(&self, announced: Announced) {
        let Announced { name, signature, words, priority } = announced;
        self.member.announce(Announcement { name, signature, description: words, priority });
    }

    /// Tells the other daemons of the job.
    fn post(&self, topic: Topic, what: &impl serde::Serialize) {
        match serde_json::to_string(what) {
            Ok(text) => self.member.post(Notice { key: topic.key(), text }),
            Err(error) => tracing::error!(%error, ?topic, "a notice has no JSON form"),
        }
    }
}

/// Reads a notice's text; one that makes no sense is as good as lost.
pub(super) fn read<T: serde::de::DeserializeOwned>(rank: u16, text: &str) -> Option<T> {
    serde_json::from_str(text)
        .inspect_err(|error| tracing::warn!(rank, %error, "a notice of another daemon makes no sense"))
        .ok()
}

/// Says so in the log when operations are outstanding and nothing has come back for long.
async fn complain(job: &Job, stream: &Stream) -> Infallible {
    let number = stream.shape().wire_job;
    let mut before = None;
    loop {
        sleep(COMPLAINT).await;
        let outstanding = stream.outstanding();
        let hub = job.hub.clone();
        let results = blocking(move || hub.carrier.results(number)).await.ok().flatten();
        if outstanding > 0 && results.is_some() && results == before {
            tracing::warn!(
                job = job.plan.spec.job,
                outstanding,
                results,
                "no result for {COMPLAINT:?}: have all workers submitted the operation? \
                 `sumac-agg status` counts what the aggregator refuses"
            );
        }
        before = results.filter(|_| outstanding > 0);
    }
}
