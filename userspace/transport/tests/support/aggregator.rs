//! An aggregator in memory: the shared checks and decisions of `sumac_wire`, plain vectors for values. It stands
//! alone, or in a rack below another one, or at the root of several.

use sumac_transport::JobParams;
use sumac_wire::{
    Header, Kind, Reason, admit,
    header::{HEADER_LEN, flag},
    slot::{Action, SlotMeta, Then, Version, answer, conclude, decide, owner, state},
    stream::place,
    tables::{JobEntry, WorkerEntry, job_flag},
};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is sent.
    Silent,
    /// The answer goes to this sender.
    Unicast(u16),
    /// The answer goes to all senders.
    Multicast,
    /// The answer is this aggregator's part, for its parent.
    Up,
}

/// Where an aggregator stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Above all workers.
    Only,
    /// Above the workers of one rack.
    Rack { rack: u16, racks: u16 },
    /// Above the racks.
    Root { racks: u16 },
}

/// What an aggregator is told of a job, beside what its workers know.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub level: Level,
    pub lanes: u16,
    pub first_seq: u32,
    pub stealing: bool,
}

pub const ALONE: Setup = Setup { level: Level::Only, lanes: 1, first_seq: 0, stealing: true };

/// One job's slots.
pub struct Aggregator {
    job: JobEntry,
    number: u16,
    metas: Vec<SlotMeta>,
    values: Vec<i32>,
    /// Each lane's next chunk to be given out.
    next: Vec<u32>,
    stealing: bool,
    /// What the last admitted contribution did: its header, its sender, the action.
    pub last: Option<(Header, u16, Action)>,
}

impl Aggregator {
    pub fn new(params: &JobParams, setup: Setup) -> Aggregator {
        let slots = params.slots * u32::from(setup.lanes);
        let mut job = JobEntry {
            token: params.token,
            slots,
            lane_slots_log2: params.slots.ilog2() as u16,
            shards: params.shards,
            contributors: params.world,
            epoch: params.epoch,
            world: params.rack_world,
            elements: params.elements,
            flags: job_flag::ACTIVE | if setup.stealing { job_flag::STEALING } else { 0 },
            ..JobEntry::default()
        };
        match setup.level {
            Level::Only => {}
            Level::Rack { rack, racks } => {
                (job.rack, job.racks, job.flags) = (rack, racks, job.flags | job_flag::CHILD);
            }
            Level::Root { racks } => (job.world, job.flags) = (racks, job.flags | job_flag::ROOT),
        }
        Aggregator {
            job,
            number: params.job,
            metas: (0..slots)
                .map(|slot| begun(&job, slot % params.slots, params.job, setup.first_seq))
                .collect(),
            values: vec![0; slots as usize * 2 * usize::from(params.elements)],
            next: vec![setup.first_seq.wrapping_add(2 * params.slots); usize::from(setup.lanes)],
            stealing: setup.stealing,
            last: None,
        }
    }

    /// Takes a sender's UDP payload, which came by the port of `shard`; leaves the answer, if there is one, in
    /// `answer`.
    pub fn handle(&mut self, shard: u16, payload: &[u8], answer: &mut Vec<u8>) -> Result<Outcome, Reason> {
        self.last = None;
        let header = Header::read(payload, 0, payload.len())?;
        if header.job != self.number {
            return Err(Reason::UnknownJob);
        }
        let sender = admit::sender(&header, &self.job)?;
        let Some(contribution) = admit::request(&header, &self.job, shard)? else {
            write_answer(answer, &Header { kind: Kind::Report as u8, ..header }, &payload[HEADER_LEN..]);
            return Ok(Outcome::Unicast(sender));
        };
        let slot = header.slot as usize;
        let (mut after, action) = decide(&self.metas[slot], &contribution);
        if let Action::Store(Then::Complete) | Action::Add(Then::Complete) = action {
            let next = self.draw(contribution.lane, contribution.seq, contribution.slots);
            after.set_next(contribution.version, next);
        }
        self.metas[slot] = after;
        self.last = Some((header, sender, action));
        match action {
            Action::Store(_) => self.merge(&header, payload, |_, new| new),
            Action::Add(_) if header.has(flag::MAXIMUM) => self.merge(&header, payload, i32::max),
            // Words of two values or of raw bytes may wrap; that sums do not overflow, their results show.
            Action::Add(_) => self.merge(&header, payload, i32::wrapping_add),
            _ => {}
        }
        self.answer(&header, sender, action, payload, answer)
    }

    /// Takes the parent's result.
    pub fn conclude(&mut self, shard: u16, payload: &[u8], answer: &mut Vec<u8>) -> Result<Outcome, Reason> {
        let header = Header::read(payload, 0, payload.len())?;
        let parent = WorkerEntry::default();
        let Some(conclusion) = admit::conclusion(&header, 0, &self.job, &parent, shard)? else {
            return Ok(Outcome::Silent);
        };
        let slot = header.slot as usize;
        let (after, action) = conclude(&self.metas[slot], &conclusion);
        self.metas[slot] = after;
        if let Action::Store(_) = action {
            self.merge(&header, payload, |_, new| new);
        }
        self.answer(&header, 0, action, payload, answer)
    }

    fn draw(&mut self, lane: u16, seq: u32, slots: u32) -> u32 {
        let next = &mut self.next[usize::from(lane)];
        if !self.stealing {
            return seq.wrapping_add(2 * slots);
        }
        *next = next.wrapping_add(1);
        next.wrapping_sub(1)
    }

    /// Writes what the action says is to be sent.
    fn answer(
        &self,
        header: &Header,
        sender: u16,
        action: Action,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome, Reason> {
        let held = self.metas[header.slot as usize].version(header.pool_version());
        let (outcome, answer) = match action {
            Action::Store(Then::Wait) | Action::Add(Then::Wait) | Action::Ask(Then::Wait) => {
                return Ok(Outcome::Silent);
            }
            Action::Ignore(reason) => return Err(reason),
            Action::Postpone => return Err(Reason::OutOfTurn),
            Action::Store(Then::Complete) | Action::Add(Then::Complete) => {
                (Outcome::Multicast, answer::result(header, &held, &self.job))
            }
            Action::Reply => (Outcome::Unicast(sender), answer::result(header, &held, &self.job)),
            Action::Ask(Then::Complete) => (Outcome::Multicast, answer::agreed(header, &held, &self.job)),
            Action::ReplyExponent => (Outcome::Unicast(sender), answer::agreed(header, &held, &self.job)),
            Action::Store(Then::Up) | Action::Add(Then::Up) | Action::Forward => {
                (Outcome::Up, answer::part(header, &held, &self.job))
            }
            Action::Ask(Then::Up) | Action::ForwardExponent => {
                (Outcome::Up, answer::part_of_round(header, &held, &self.job))
            }
            Action::Want => {
                let asked_by = admit::rank(header.bitmap_0, self.job.world).unwrap_or(sender);
                let asked_by = if self.job.flags & job_flag::ROOT != 0 { sender } else { asked_by };
                (Outcome::Unicast(asked_by), answer::wanted(header, &self.job))
            }
            Action::Pass => (Outcome::Up, answer::question(header, &self.job)),
            Action::Refuse => {
                let is_from_above = header.kind == Kind::Result as u8;
                let outcome = if is_from_above { Outcome::Multicast } else { Outcome::Unicast(sender) };
                // What the parent holds, then, not what this one does.
                let tensor = if is_from_above { header.tensor } else { held.tensor };
                let refusal = answer::refusal(header, &Version { tensor, ..held }, &self.job);
                write_answer(out, &refusal, &payload[HEADER_LEN..]);
                return Ok(outcome);
            }
        };
        write_answer(out, &answer, &[]);
        if answer.elements > 0 {
            self.values[self.range(&answer)].iter().for_each(|sum| out.extend(sum.to_be_bytes()));
        }
        Ok(outcome)
    }

    fn range(&self, header: &Header) -> std::ops::Range<usize> {
        let version = usize::from(header.pool_version());
        let first = (header.slot as usize * 2 + version) * usize::from(self.job.elements);
        first..first + usize::from(header.elements)
    }

    fn merge(&mut self, header: &Header, payload: &[u8], with: impl Fn(i32, i32) -> i32) {
        let range = self.range(header);
        let elements = payload[HEADER_LEN..].as_chunks().0;
        for (sum, element) in self.values[range].iter_mut().zip(elements) {
            *sum = with(*sum, i32::from_be_bytes(*element));
        }
    }
}

fn write_answer(answer: &mut Vec<u8>, header: &Header, elements: &[u8]) {
    answer.clear();
    answer.extend(header.to_bytes());
    answer.extend(elements);
}

/// A slot as it is before chunk `first`: streams begin with chunk 0, later they are in the middle of it.
fn begun(job: &JobEntry, slot: u32, number: u16, first: u32) -> SlotMeta {
    if first == 0 {
        return SlotMeta::default();
    }
    let slots = job.lane_slots();
    let next = first.wrapping_add(slot.wrapping_sub(first) & (slots - 1));
    let held = |next: u32| Version {
        seq: next.wrapping_sub(2 * slots),
        seen: job.all(),
        next,
        state: state::FINAL,
        ..Version::default()
    };
    let versions = [held(next), held(next.wrapping_add(slots))];
    let is_second = place(next, slots.ilog2()).version == 1;
    let [a, b] = versions;
    SlotMeta { owner: owner(number, job.epoch), versions: if is_second { [b, a] } else { [a, b] } }
}
