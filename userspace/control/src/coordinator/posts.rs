//! What members say: notices, announcements, and what they measured; and the number of slots that follows.

use sumac_transport::PathMeasure;

use super::{
    Action, Coordinator, End, Event, MEASURE_PATIENCE, MemberId, Phase, RunId, Time,
    run::{Run, Slots, Tuning},
};
use crate::{
    failure::JobFailure,
    post::{Announcement, NOTICE_LEN, Notice, OperationOrder, printable},
    tune,
};

/// What a member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Post {
    /// To all members.
    Notice(Notice),
    /// It is ready for an operation.
    Announcement(Announcement),
    /// What its path can do.
    Measure(PathMeasure),
}

impl Coordinator {
    /// A member says something, which is a sign of life, too. `first` counts the member's earlier posts: what was
    /// taken already is skipped.
    pub fn post(&mut self, now: Time, member: MemberId, first: u64, posts: Vec<Post>) {
        self.heartbeat(now, member);
        let Some((id, rank)) = self.members.get(&member).copied() else { return };
        let Some(run) = self.runs.get_mut(&id).filter(|run| matches!(run.phase, Phase::Running(_))) else {
            return;
        };
        let Some(seat) = run.seats.get_mut(&rank) else { return };
        let Some(known) = seat.posted.checked_sub(first) else { return };
        let fresh = posts.into_iter().skip(usize::try_from(known).unwrap_or(usize::MAX));
        let mut taken = Ok(());
        for post in fresh {
            taken = taken.and_then(|()| take(run, rank, post));
            if let Some(seat) = run.seats.get_mut(&rank) {
                seat.posted += 1;
            }
        }
        // Together, and not one by one: so the urgent come first of all that this call made ready.
        while let Some(name) = run.naming.release() {
            taken = taken.and_then(|()| tell(run, Event::Released(name)));
        }
        match taken {
            Ok(()) => self.tune(id),
            Err(failure) => self.end(id, End::Failed(failure)),
        }
    }

    /// What a member knows; see [`Coordinator::events`].
    pub fn heard(&mut self, member: MemberId, heard: u64) {
        let seat =
            self.members.get(&member).and_then(|(run, rank)| self.runs.get_mut(run)?.seats.get_mut(rank));
        if let Some(seat) = seat {
            seat.heard = seat.heard.max(heard);
        }
    }

    /// The events that a member who knows `heard` of them has not heard, as many as `budget` bytes hold; and the
    /// number of the first.
    pub fn events(&self, member: MemberId, heard: u64, budget: usize) -> (u64, Vec<Event>) {
        let Some((run, since)) = self.log_of(member) else { return (heard, Vec::new()) };
        run.log.since(heard.max(since), budget)
    }

    /// A member's run, and how many of its events were before the member's time.
    fn log_of(&self, member: MemberId) -> Option<(&Run, u64)> {
        let (run, rank) = self.members.get(&member)?;
        let run = self.runs.get(run)?;
        Some((run, run.seats.get(rank).map_or(0, |seat| seat.since)))
    }

    /// Whether there are such events.
    pub fn has_events(&self, member: MemberId, heard: u64) -> bool {
        self.log_of(member).is_some_and(|(run, since)| run.log.end() > heard.max(since))
    }

    /// Fixes the number of slots once every worker that is still there has measured its path.
    pub(super) fn tune(&mut self, id: RunId) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.slots.state == Tuning::Measuring) else {
            return;
        };
        let present = run.seats.values().filter(|seat| !seat.departed);
        let measures: Option<Vec<PathMeasure>> = present.map(|seat| seat.measure).collect();
        let (Some(measures), Some(terms)) = (measures, run.terms) else { return };
        let (slots, reason) = tune::slots(&measures, terms.elements, terms.shards, run.slots.lane);
        tracing::info!(name = run.name, job = run.job, slots, reason, "slots measured");
        // Also when it keeps all that it has: the plane is told why.
        run.slots = Slots { lane: slots, reason: reason.clone(), state: Tuning::Resizing };
        self.actions.push_back(Action::Resize { run: id, job: run.job, lane_slots: slots, reason });
    }

    /// Who has not measured its path in time keeps the others from starting, though it is alive: ends the job.
    pub(super) fn expire_measures(&mut self, now: Time, id: RunId) {
        let Some(run) = self.runs.get(&id).filter(|run| matches!(run.phase, Phase::Running(_))) else {
            return;
        };
        if run.slots.state != Tuning::Measuring || now < run.measured_by {
            return;
        }
        let mut seats = run.seats.iter().filter(|(_, seat)| !seat.departed && seat.measure.is_none());
        let Some((rank, seat)) = seats.next() else { return };
        let failure = JobFailure::unmeasured(*rank, seat.worker.ip, MEASURE_PATIENCE);
        self.end(id, End::Failed(failure));
    }

    /// The plane has given a part of a job's slots back, or not.
    pub fn on_resized(&mut self, id: RunId, result: Result<(), String>) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.is_live()) else { return };
        if let Err(what) = result {
            return self.end(id, End::Failed(JobFailure::plane(&what)));
        }
        if let (Some(range), Some(terms)) = (run.range, run.terms) {
            let kept = self.pool.shrink(range, run.slots.lane * u32::from(terms.lanes()));
            run.range = Some(kept);
        }
        run.slots.state = Tuning::Done;
        run.revision += 1;
    }
}

fn take(run: &mut Run, rank: u16, post: Post) -> Result<(), JobFailure> {
    match post {
        Post::Notice(notice) => {
            let text = printable(&notice.text, NOTICE_LEN);
            tell(run, Event::Notice { rank, notice: Notice { text, ..notice } })
        }
        Post::Announcement(announcement) => {
            let by_name = run.terms.is_some_and(|terms| terms.order == OperationOrder::Name);
            let announced = if by_name {
                run.naming.announce(rank, run.world, announcement)
            } else {
                Err(format!("rank {rank} announced an operation in a job whose order is that of submission"))
            };
            announced.map_err(|message| JobFailure::mismatch(Some(rank), message))
        }
        Post::Measure(measure) => {
            if let Some(seat) = run.seats.get_mut(&rank) {
                seat.measure = Some(measure);
            }
            Ok(())
        }
    }
}

fn tell(run: &mut Run, event: Event) -> Result<(), JobFailure> {
    if run.tell(event) {
        return Ok(());
    }
    let deaf = run.deafest().unwrap_or_default();
    Err(JobFailure::deaf(deaf, run.ip_of(deaf)))
}
