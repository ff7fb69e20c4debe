//! Reports of members: announcements, faults, what they measured; and the number of slots that follows.

use sumac_job::OperationOrder;

use super::{
    Coordinator,
    ids::{MemberId, RunId},
    orders::Action,
    record::Record,
    run::{Member, Phase, Run},
    time::{MEASURE_TIMEOUT, Time},
};
use crate::{
    events::{Event, Fault, Post, TEXT_LEN, printable},
    failure::{FailureKind, JobFailure},
    message::End,
    tune,
};

impl Coordinator {
    /// A member's reports. `first` counts the member's earlier posts: those that were taken already are
    /// skipped.
    pub fn post(&mut self, now: Time, id: MemberId, first: u64, posts: Vec<Post>) {
        self.heartbeat(now, id);
        let Some((run_id, rank)) = self.members.get(&id).copied() else { return };
        let Some(run) = self.runs.get_mut(&run_id).filter(|run| run.phase == Phase::Running) else { return };
        self.records.push(Record::Posts { run: run_id, rank, first, posts: posts.clone() });
        match run.take_posts(now, rank, first, posts) {
            Ok(()) => {
                self.tune(run_id);
                self.expire_mismatch(now, run_id);
            }
            Err(failure) => self.end(run_id, End::Failed(failure)),
        }
    }

    pub fn posted(&self, id: MemberId) -> u64 {
        self.lookup(id).map_or(0, |(_, member)| member.posted)
    }

    pub fn on_received(&mut self, id: MemberId, received: u64) {
        let Some((run, rank)) = self.members.get(&id) else { return };
        let Some(run) = self.runs.get_mut(run) else { return };
        let end = run.log.end();
        if let Some(member) = run.members.get_mut(rank) {
            member.received = member.received.max(received.min(end));
        }
    }

    /// Returns the event from number `from` on that a member is to receive next, with its number.
    pub fn event(&self, id: MemberId, from: u64) -> Option<(u64, Event)> {
        let (run, member) = self.lookup(id)?;
        run.log.get(from.max(member.first_event)).map(|(number, event)| (number, event.clone()))
    }

    pub(super) fn tune(&mut self, id: RunId) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.is_measuring()) else { return };
        let present = run.members.values().filter(|member| !member.departed);
        let of = |round: usize| present.clone().map(|member| member.measures.get(round).copied()).collect();
        let (Some(own), has_both) = (of(0), run.has_both_backends()) else { return };
        let udp: Option<Vec<_>> = of(1);
        let measured_by = self.last_tick + MEASURE_TIMEOUT;
        let Some(terms) = &mut run.terms else { return };
        if !terms.over_udp && has_both {
            (terms.over_udp, run.measured_by) = (true, measured_by);
            return run.changed();
        }
        let (measures, why) = match udp {
            None if terms.over_udp => return,
            Some(udp) if terms.over_udp => {
                let (is_faster, why) = tune::prefers_udp(&own, &udp);
                run.is_faster_over_udp = is_faster;
                (if is_faster { udp } else { own }, why)
            }
            _ => (own, String::new()),
        };
        let unread = self.plane.socket_bytes.map(|bytes| tune::unread(bytes, measures.len(), terms.elements));
        let (slots, reason) = tune::slots(&measures, terms.elements, terms.shards, terms.slots, unread);
        let reason = why + &reason;
        tracing::info!(name = run.name, job = run.job, slots, reason, "slots measured");
        // Also when it keeps all that it has: the planes show the reason.
        (terms.slots, terms.slots_reason) = (slots, reason);
        run.is_resizing = true;
        self.actions.extend(run.order(self.stealing).map(|order| Action::Resize(id, order)));
    }

    /// A worker that has not measured its path in time keeps the others from starting, though it is alive:
    /// ends the job.
    pub(super) fn expire_measures(&mut self, now: Time, id: RunId) {
        let is_measuring =
            |run: &&Run| run.phase == Phase::Running && run.is_measuring() && now >= run.measured_by;
        let Some(run) = self.runs.get(&id).filter(is_measuring) else { return };
        let is_late = |member: &Member| !member.departed && member.measures.len() < run.wanted_measures();
        let late = run.members.iter().find(|(_, member)| is_late(member));
        let Some((rank, _)) = late else { return };
        let what = format!(
            "has not measured its path within {MEASURE_TIMEOUT:?}: see its log, or give the number of slots"
        );
        let failure = run.blame(FailureKind::Silent, *rank, &what);
        self.end(id, End::Failed(failure));
    }

    pub fn on_resized(&mut self, id: RunId, result: Result<(), String>) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.is_live()) else { return };
        if let Err(what) = result {
            return self.end(id, End::Failed(JobFailure::plane(&what)));
        }
        if let (Some(range), Some(terms)) = (run.range, &mut run.terms) {
            run.range = Some(self.pool.shrink(range, terms.slots * u32::from(terms.lanes())));
            (terms.is_measured, terms.over_udp) = (true, run.is_faster_over_udp);
        }
        run.is_resizing = false;
        run.changed();
    }
}

impl Run {
    pub(super) fn take_posts(
        &mut self,
        now: Time,
        rank: u16,
        first: u64,
        posts: Vec<Post>,
    ) -> Result<(), JobFailure> {
        for (number, post) in (first..).zip(posts) {
            let Some(member) = self.members.get_mut(&rank) else { break };
            if number >= member.posted {
                member.posted = number + 1;
                self.take(now, rank, post)?;
            }
        }
        // Together, and not one by one: so the urgent come first of all that are complete now.
        while let Some(name) = self.naming.release() {
            self.tell(Event::Released(name))?;
        }
        Ok(())
    }

    fn take(&mut self, now: Time, rank: u16, post: Post) -> Result<(), JobFailure> {
        match post {
            Post::Measure(measure) => {
                let wanted = self.wanted_measures();
                let member = self.members.get_mut(&rank);
                if let Some(member) = member.filter(|member| member.measures.len() < wanted) {
                    member.measures.push(measure);
                }
                Ok(())
            }
            Post::Fault(fault) => {
                let problem = printable(&fault.problem, TEXT_LEN);
                // A rank of another member is not believed.
                let rank = fault.rank.filter(|at| self.all_ranks([rank]).contains(at)).unwrap_or(rank);
                self.tell(Event::Fault { rank, fault: Fault { problem, ..fault } })
            }
            Post::ResumePoint { epoch, point } => self.tell(Event::ResumePoint { epoch, point }),
            Post::Stalled(operation) => self.on_stalled(now, rank, operation),
            Post::Idle(operation) => {
                self.on_idle(now, rank, operation);
                Ok(())
            }
            Post::Operations(report) => self.on_operations(now, rank, report),
            Post::Announce(announcement) => {
                let by_name = self.terms.as_ref().is_some_and(|terms| terms.order == OperationOrder::Name);
                if !by_name {
                    let message = format!(
                        "rank {rank} announced an operation in a job whose order is that of submission"
                    );
                    return Err(JobFailure::mismatch(&[rank], message));
                }
                self.naming.announce(now, rank, self.workers(), announcement)
            }
        }
    }
}
