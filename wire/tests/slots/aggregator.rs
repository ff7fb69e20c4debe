//! An aggregator of the model: the shared checks, decisions and answers around sums of one word.

use sumac_wire::{
    Header, Kind, Reason, admit,
    slot::{Action, SlotMeta, Then, answer, conclude, decide},
    tables::{JobEntry, WorkerEntry, job_flag},
};

use crate::packet::Packet;

/// Slots with their values, and the lane's counter.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Aggregator {
    slots: Vec<(SlotMeta, [u64; 2])>,
    next: u32,
}

/// What it sends, and to whom.
pub enum Sent {
    One(Packet),
    /// To the worker that asked, not to who sent what is answered.
    Worker(u16, Packet),
    All(Packet),
    Up(Packet),
}

impl Aggregator {
    pub fn new(job: &JobEntry) -> Aggregator {
        let slots = vec![(SlotMeta::default(), [0; 2]); job.slots as usize];
        Aggregator { slots, next: 2 * job.lane_slots() }
    }

    /// Takes a contribution, or a result of its parent's.
    pub fn receive(&mut self, job: &JobEntry, packet: &Packet) -> Result<Option<Sent>, Reason> {
        let header = packet.header();
        if packet.is_result() {
            self.conclude(job, &header, packet.sum)
        } else {
            self.contribute(job, &header, packet.sum)
        }
    }

    fn contribute(&mut self, job: &JobEntry, header: &Header, sum: u64) -> Result<Option<Sent>, Reason> {
        admit::sender(header, job)?;
        let Some(contribution) = admit::request(header, job, 0)? else { return Ok(None) };
        let version = contribution.version;
        let (meta, values) = &mut self.slots[header.slot as usize];
        let (mut after, action) = decide(meta, &contribution);
        let values = &mut values[usize::from(version)];
        match action {
            Action::Store(_) => *values = sum,
            Action::Add(_) => *values = values.wrapping_add(sum),
            Action::Ignore(reason) => return Err(reason),
            _ => {}
        }
        if let Action::Store(Then::Complete) | Action::Add(Then::Complete) = action {
            let next = if job.flags & job_flag::STEALING != 0 {
                self.next
            } else {
                header.seq + 2 * contribution.slots
            };
            self.next += 1;
            after.set_next(version, next);
        }
        *meta = after;
        let held = after.version(version);
        let packet = |header: Header| Packet::new(&header, *values);
        Ok(match action {
            Action::Store(Then::Complete) | Action::Add(Then::Complete) => {
                Some(Sent::All(packet(answer::result(header, &held, job))))
            }
            Action::Ask(Then::Complete) => Some(Sent::All(packet(answer::agreed(header, &held, job)))),
            Action::Reply => Some(Sent::One(packet(answer::result(header, &held, job)))),
            Action::ReplyExponent => Some(Sent::One(packet(answer::agreed(header, &held, job)))),
            Action::Store(Then::Up) | Action::Add(Then::Up) | Action::Forward => {
                Some(Sent::Up(packet(answer::part(header, &held, job))))
            }
            Action::Ask(Then::Up) | Action::ForwardExponent => {
                Some(Sent::Up(packet(answer::part_of_round(header, &held, job))))
            }
            Action::Refuse => Some(Sent::One(packet(answer::refusal(header, &held, job)))),
            Action::Want => Some(Sent::One(packet(answer::wanted(header, job)))),
            Action::Pass => Some(Sent::Up(packet(answer::question(header, job)))),
            _ => None,
        })
    }

    fn conclude(&mut self, job: &JobEntry, header: &Header, sum: u64) -> Result<Option<Sent>, Reason> {
        let parent = WorkerEntry::default();
        let Some(conclusion) = admit::conclusion(header, parent.ip, job, &parent, 0)? else {
            return Ok(None);
        };
        let (meta, values) = &mut self.slots[header.slot as usize];
        let (after, action) = conclude(meta, &conclusion);
        *meta = after;
        let held = after.version(conclusion.version);
        let header = match action {
            Action::Store(_) => {
                values[usize::from(conclusion.version)] = sum;
                answer::result(header, &held, job)
            }
            Action::Ask(_) => answer::agreed(header, &held, job),
            Action::Refuse => answer::refusal(header, &held, job),
            Action::Want => {
                let asked_by = admit::rank(header.bitmap_0, job.world).ok_or(Reason::WrongWorker)?;
                return Ok(Some(Sent::Worker(asked_by, Packet::new(&answer::wanted(header, job), 0))));
            }
            Action::Ignore(reason) => return Err(reason),
            _ => return Err(Reason::Internal),
        };
        debug_assert_eq!(header.kind, Kind::Result as u8);
        Ok(Some(Sent::All(Packet::new(&header, sum))))
    }
}
