//! An aggregator in memory: the shared checks and decision of `sumac_wire`, plain vectors for values.

use sumac_transport::JobParams;
use sumac_wire::{
    Header, Kind, Reason, admit,
    header::HEADER_LEN,
    slot::{Action, SlotMeta, Then, answer, decide},
    tables::{JobEntry, job_flag},
};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is sent.
    Silent,
    /// The answer goes to this rank.
    Unicast(u16),
    /// The answer goes to all workers.
    Multicast,
}

/// One job's slots.
pub struct Aggregator {
    job: JobEntry,
    number: u16,
    metas: Vec<SlotMeta>,
    values: Vec<i32>,
    /// What the last admitted contribution did: chunk, rank, action.
    pub last: Option<(u32, u16, Action)>,
}

impl Aggregator {
    pub fn new(params: &JobParams) -> Aggregator {
        let job = JobEntry {
            token: params.token,
            slots: params.slots,
            lane_slots_log2: params.slots.ilog2() as u16,
            shards: 1,
            contributors: params.world,
            epoch: params.epoch,
            world: params.world,
            elements: params.elements,
            flags: job_flag::ACTIVE,
            ..JobEntry::default()
        };
        let slots = params.slots as usize;
        Aggregator {
            job,
            number: params.job,
            metas: vec![SlotMeta::default(); slots],
            values: vec![0; slots * 2 * usize::from(params.elements)],
            last: None,
        }
    }

    /// Takes one UDP payload; leaves the answer, if there is one, in `answer`.
    pub fn handle(&mut self, payload: &[u8], answer: &mut Vec<u8>) -> Result<Outcome, Reason> {
        self.last = None;
        let header = Header::read(payload, 0, payload.len())?;
        if header.job != self.number {
            return Err(Reason::UnknownJob);
        }
        let rank = admit::sender(&header, &self.job)?;
        let Some(contribution) = admit::request(&header, &self.job, 0)? else {
            write_answer(answer, &Header { kind: Kind::Report as u8, ..header }, &payload[HEADER_LEN..]);
            return Ok(Outcome::Unicast(rank));
        };
        let slot = header.slot as usize;
        let (mut after, action) = decide(&self.metas[slot], &contribution);
        if let Action::Store(Then::Complete) | Action::Add(Then::Complete) = action {
            after.set_next(contribution.version, contribution.seq.wrapping_add(2 * contribution.slots));
        }
        self.metas[slot] = after;
        self.last = Some((header.seq, rank, action));
        let version = usize::from(contribution.version);
        let outcome = match action {
            Action::Store(then) => {
                self.merge(&header, version, payload, |_, new| new);
                if then == Then::Complete { Outcome::Multicast } else { Outcome::Silent }
            }
            Action::Add(then) => {
                self.merge(&header, version, payload, |sum, new| sum.checked_add(new).expect("an overflow"));
                if then == Then::Complete { Outcome::Multicast } else { Outcome::Silent }
            }
            Action::Reply => Outcome::Unicast(rank),
            Action::Ignore(reason) => return Err(reason),
            other => unreachable!("{other:?}"),
        };
        if outcome != Outcome::Silent {
            self.answer(&header, version, answer);
        }
        Ok(outcome)
    }

    fn range(&self, header: &Header, version: usize) -> std::ops::Range<usize> {
        let first = (header.slot as usize * 2 + version) * usize::from(self.job.elements);
        first..first + usize::from(header.elements)
    }

    fn merge(&mut self, header: &Header, version: usize, payload: &[u8], with: impl Fn(i32, i32) -> i32) {
        let range = self.range(header, version);
        let elements = payload[HEADER_LEN..].as_chunks().0;
        for (sum, element) in self.values[range].iter_mut().zip(elements) {
            *sum = with(*sum, i32::from_be_bytes(*element));
        }
    }

    fn answer(&self, header: &Header, version: usize, out: &mut Vec<u8>) {
        let held = self.metas[header.slot as usize].versions[version];
        let result = answer::result(header, &held, &self.job);
        write_answer(out, &result, &[]);
        for sum in &self.values[self.range(header, version)] {
            out.extend(sum.to_be_bytes());
        }
    }
}

fn write_answer(answer: &mut Vec<u8>, header: &Header, elements: &[u8]) {
    answer.clear();
    answer.extend(header.to_bytes());
    answer.extend(elements);
}
