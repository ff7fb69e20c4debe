//! Jobs with slots of their own (SwitchML): what their packets do to them.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_agg_job::{JobError, endpoint, resized, seen::WorkerSeen};
use sumac_values as values;
use sumac_wire::{
    Header, Kind, MAX_LANES, Reason, admit,
    bytes::Bytes as _,
    header::{HEADER_LEN, flag, offset},
    slot::{
        Action, Conclusion, Contribution, SlotMeta, Then, Version, answer, conclude, decide, owner, state,
    },
    stream::place,
    tables::{JobEntry, job_flag, lane_index, worker_index},
    workers,
};

use super::{Answer, HostAggregator};
use crate::watch::Chunk;

impl HostAggregator {
    /// Checks whether [`HostAggregator::resize`] would leave a job so many slots in each lane; returns its
    /// new entry.
    pub fn check_resize(&self, number: u16, lane_slots: u32) -> Result<JobEntry, JobError> {
        let job = self.job(number).copied().unwrap_or_default();
        let resized = resized(number, &job, lane_slots)?;
        let owner = owner(number, job.epoch);
        let mut slots = self.pool.slots.iter().skip(job.slot_base as usize).take(job.slots as usize);
        if slots.any(|meta| meta.owner == owner) {
            return Err(JobError::Held(number));
        }
        Ok(resized)
    }

    /// Leaves a job only so many slots in each lane; none of its workers may have contributed yet.
    pub fn resize(&mut self, number: u16, lane_slots: u32) -> Result<(), JobError> {
        let resized = self.check_resize(number, lane_slots)?;
        if let Some(job) = self.jobs.get_mut(usize::from(number)) {
            job.entry = resized;
        }
        self.reset_lanes(number, 2 * lane_slots);
        Ok(())
    }

    /// Sets the chunk that each lane's next completed slot takes. A lane's slots take their first two chunks
    /// by their number; what is drawn comes after those.
    pub(super) fn reset_lanes(&mut self, number: u16, next: u32) {
        let first = lane_index(number, 0) as usize;
        if let Some(lanes) = self.lanes.get_mut(first..first + MAX_LANES) {
            lanes.fill(next);
        }
    }

    /// Lets the streams of a static job begin with chunk `first`, as if all chunks before it were summed.
    /// Simulations start there to have chunk numbers wrap.
    pub fn start_streams_at(&mut self, number: u16, first: u32) {
        let Some(job) = self.job(number).copied().filter(|_| first != 0) else { return };
        let (lane_slots, owner) = (job.lane_slots(), owner(number, job.epoch));
        for slot in 0..job.slots {
            let next = first.wrapping_add((slot % lane_slots).wrapping_sub(first) & (lane_slots - 1));
            let summed = |next: u32| Version {
                seq: next.wrapping_sub(2 * lane_slots),
                seen: job.all(),
                received: job.all(),
                next,
                state: state::FINAL,
                ..Version::default()
            };
            let mut versions = [summed(next), summed(next.wrapping_add(lane_slots))];
            if place(next, lane_slots.ilog2()).version == 1 {
                versions.swap(0, 1);
            }
            if let Some((meta, _)) = self.pool.get(job.slot_base + slot, 0) {
                *meta = SlotMeta { owner, versions };
            }
        }
        self.reset_lanes(number, first.wrapping_add(2 * lane_slots));
    }

    pub(super) fn take_static(
        &mut self,
        entry: &JobEntry,
        header: &Header,
        source: Ipv4Addr,
        parent: Option<SocketAddrV4>,
        packet: &mut [u8],
    ) -> Result<Answer, Reason> {
        let (rank, back) = self.sender(entry, header, source)?;
        let index = worker_index(header.job, rank) as usize;
        let request = admit::request(header, entry, self.shard)?;
        if self.watch.loses_arriving(header.job) {
            return Err(Reason::Injected);
        }
        let Some(mut contribution) = request else {
            // As it came: a mark on a probe is not reported.
            let probe = Header::fields(&*packet, 0).ok_or(Reason::Internal)?;
            self.avoid(&probe, rank);
            let report = Header { kind: Kind::Report as u8, token: entry.result_token, ..probe };
            packet[..HEADER_LEN].copy_from_slice(&report.to_bytes());
            return Ok(Answer::One(Reason::Probed, back, Some(rank)));
        };
        if header.has(flag::PARTIAL) {
            let job = self.jobs.get(usize::from(header.job));
            let below = job.and_then(|job| job.ranks.get(usize::from(rank))).copied();
            contribution.left_out = admit::left_out(header, entry, below.unwrap_or_default())?;
        }
        let applied = self.contribute(entry, header, &contribution, packet);
        self.count_worker(index, applied);
        if let (Ok(Applied::Added | Applied::Completed | Applied::Up), false) =
            (applied, header.has(flag::EXPONENT))
        {
            let is_last = !matches!(applied, Ok(Applied::Added));
            let chunk = Chunk::of_static(entry.slot_base + header.slot, &contribution);
            self.watch.look(header.job, index, chunk, is_last);
        }
        Ok(match applied? {
            Applied::Added => Answer::None(Reason::Added),
            Applied::Completed | Applied::Flushed => Answer::All(Reason::Completed, header.job),
            Applied::Replied => Answer::One(Reason::Replied, back, Some(rank)),
            Applied::Refused => Answer::One(Reason::Mismatch, back, Some(rank)),
            Applied::Wanted => Answer::One(Reason::Wanted, back, Some(rank)),
            Applied::Up | Applied::UpFlushed | Applied::UpAgain => {
                Answer::One(Reason::Forwarded, parent.ok_or(Reason::Internal)?, None)
            }
        })
    }

    /// Returns the header of the contribution of zeros that a packet without values stands for, if that would
    /// complete its chunk: the result takes the packet's place.
    pub fn with_zeros(&self, source: Ipv4Addr, packet: &[u8]) -> Option<Header> {
        // Of most packets no more is read.
        if packet.be16(offset::FLAGS)? & flag::EMPTY == 0 {
            return None;
        }
        let header = Header::fields(packet, 0)?;
        let elements = self.lacking(source, packet).filter(|elements| *elements != 0)?;
        Some(Header { elements, flags: header.flags & !flag::EMPTY, ..header })
    }

    fn lacking(&self, source: Ipv4Addr, packet: &[u8]) -> Option<u16> {
        let header = Header::read(packet, 0, packet.len()).ok()?;
        let job = self.job(header.job).filter(|job| !admit::is_from_parent(&header, job))?;
        self.sender(job, &header, source).ok()?;
        let contribution = admit::request(&header, job, self.shard).ok().flatten()?;
        let meta = self.pool.slots.get((job.slot_base + header.slot) as usize)?;
        let version = meta.version(contribution.version);
        Some(if meta.owner == contribution.owner { version.lacking(&contribution) } else { 0 })
    }

    /// Applies the decision to the slot; what the packet is answered with replaces it.
    fn contribute(
        &mut self,
        job: &JobEntry,
        header: &Header,
        contribution: &Contribution,
        packet: &mut [u8],
    ) -> Result<Applied, Reason> {
        let (meta, values) =
            self.pool.get(job.slot_base + header.slot, contribution.version).ok_or(Reason::Internal)?;
        let (mut after, action) = decide(meta, contribution);
        let lane = lane_index(header.job, contribution.lane) as usize;
        let action = if contribution.limit == 0 {
            action
        } else {
            let budget = self.budgets.get_mut(lane).ok_or(Reason::Internal)?;
            let job = self.jobs.get(usize::from(header.job)).ok_or(Reason::Internal)?;
            after.bounded(action, contribution, budget, |workers| job.ranks_of(workers))
        };
        let (_, payload) = packet.split_at_mut(HEADER_LEN);
        match action {
            Action::Ignore(reason) => return Err(reason),
            Action::Store(_) => values::store(values, payload),
            Action::Add(_) if header.has(flag::MAXIMUM) => values::maximum(values, payload),
            Action::Add(_) => values::add(values, payload),
            _ => {}
        }
        if let Action::Store(Then::Complete) | Action::Add(Then::Complete) | Action::Held(Then::Complete) =
            action
        {
            let lane = self.lanes.get_mut(lane).ok_or(Reason::Internal)?;
            after.set_next(contribution.version, draw(job, contribution, lane));
        }
        *meta = after;
        match action {
            Action::Postpone => return Err(Reason::OutOfTurn),
            Action::Held(Then::Wait) => return Err(Reason::Duplicate),
            _ => {}
        }
        let held = after.version(contribution.version);
        let Some((header, applied)) = answer_to(action, header, &held, job) else {
            return Ok(Applied::Added);
        };
        if matches!(action, Action::Add(_) | Action::Held(_) | Action::Reply | Action::Forward) {
            values::write(payload, values);
        }
        packet[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        Ok(applied)
    }

    /// Takes a packet of a job's parent: a result ends the chunk for all workers, the answer to a question is
    /// for the one that asked; in the middle of a tree for all racks, one of which knows it.
    pub(super) fn take_result(
        &mut self,
        job: &JobEntry,
        header: &Header,
        source: Ipv4Addr,
        parent: SocketAddrV4,
        packet: &mut [u8],
    ) -> Result<Answer, Reason> {
        let conclusion = admit::conclusion(header, source.to_bits(), job, &endpoint(parent), self.shard)?;
        // The answer to a probe: nobody here sends one.
        let conclusion: Conclusion = conclusion.ok_or(Reason::BadType)?;
        if self.watch.loses_arriving(header.job) {
            return Err(Reason::Injected);
        }
        let (meta, values) =
            self.pool.get(job.slot_base + header.slot, conclusion.version).ok_or(Reason::Internal)?;
        let (after, action) = conclude(meta, &conclusion);
        if let Action::Store(_) = action {
            values::store(values, &packet[HEADER_LEN..]);
        }
        *meta = after;
        let held = after.version(conclusion.version);
        let (reason, answer) = match action {
            Action::Ignore(reason) => return Err(reason),
            Action::Store(_) => (Reason::Concluded, answer::result(header, &held, job)),
            Action::Ask(_) => (Reason::Concluded, answer::agreed(header, &held, job)),
            // What the parent holds, not what is held here.
            Action::Refuse => {
                (Reason::Mismatch, answer::refusal(header, &Version { tensor: header.tensor, ..held }, job))
            }
            Action::Want => (Reason::Wanted, answer::wanted(header, job)),
            _ => return Err(Reason::Internal),
        };
        packet[..HEADER_LEN].copy_from_slice(&answer.to_bytes());
        if let (Action::Want, false) = (action, admit::wants_of_all(job)) {
            let rank = workers::rank(header.bitmap_0, job.world).ok_or(Reason::WrongWorker)?;
            let asked_by = self.workers(header.job).get(usize::from(rank));
            return Ok(Answer::One(reason, *asked_by.ok_or(Reason::Internal)?, Some(rank)));
        }
        Ok(Answer::All(reason, header.job))
    }

    fn count_worker(&mut self, index: usize, applied: Result<Applied, Reason>) {
        let Some(WorkerSeen { counters, .. }) = self.watch.worker_mut(index) else { return };
        match applied {
            Ok(Applied::Added) => counters.added += 1,
            Ok(Applied::Completed | Applied::Up) => {
                counters.added += 1;
                counters.last += 1;
            }
            Ok(Applied::Replied) => counters.replies += 1,
            Ok(Applied::Refused | Applied::UpAgain | Applied::Wanted) => {}
            Ok(Applied::Flushed | Applied::UpFlushed) | Err(Reason::Duplicate) => counters.duplicates += 1,
            Err(_) => {}
        }
    }
}

/// The chunk that takes a version next, after the one that completed it.
fn draw(job: &JobEntry, completed: &Contribution, lane: &mut u32) -> u32 {
    if job.flags & job_flag::STEALING == 0 {
        return completed.seq.wrapping_add(2 * completed.slots);
    }
    let drawn = *lane;
    *lane = lane.wrapping_add(1);
    drawn
}

/// The header of what a contribution is answered with, and what that means; `None` when it only waits.
fn answer_to(action: Action, header: &Header, held: &Version, job: &JobEntry) -> Option<(Header, Applied)> {
    Some(match action {
        Action::Store(Then::Complete) | Action::Add(Then::Complete) => {
            (answer::result(header, held, job), Applied::Completed)
        }
        Action::Held(Then::Complete) => (answer::result(header, held, job), Applied::Flushed),
        Action::Ask(Then::Complete) => (answer::agreed(header, held, job), Applied::Completed),
        Action::Store(Then::Up) | Action::Add(Then::Up) => (answer::part(header, held, job), Applied::Up),
        Action::Held(Then::Up) => (answer::part(header, held, job), Applied::UpFlushed),
        Action::Ask(Then::Up) => (answer::part_of_round(header, held, job), Applied::Up),
        Action::Reply => (answer::result(header, held, job), Applied::Replied),
        Action::ReplyExponent => (answer::agreed(header, held, job), Applied::Replied),
        Action::Forward => (answer::part(header, held, job), Applied::UpAgain),
        Action::ForwardExponent => (answer::part_of_round(header, held, job), Applied::UpAgain),
        Action::Refuse => (answer::refusal(header, held, job), Applied::Refused),
        Action::Want => (answer::wanted(header, job), Applied::Wanted),
        Action::Pass => (answer::question(header, job), Applied::UpAgain),
        Action::Store(Then::Wait)
        | Action::Add(Then::Wait)
        | Action::Ask(Then::Wait)
        | Action::Held(Then::Wait)
        | Action::Postpone
        | Action::Ignore(_) => return None,
    })
}

#[derive(Clone, Copy)]
enum Applied {
    Added,
    Completed,
    /// By a flush whose values were in.
    Flushed,
    Replied,
    Refused,
    Up,
    /// By a flush whose values were in.
    UpFlushed,
    UpAgain,
    Wanted,
}
