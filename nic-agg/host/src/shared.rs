//! The slots that dynamic jobs share (ATP section 3.5): any chunk of any of them may be in any slot.

use sumac_values as values;
use sumac_wire::{
    Header, Reason,
    dynamic::{self, Action, Contribution, SlotMeta},
    header::{HEADER_LEN, flag},
};

use crate::pool::{NoMemory, Pool};

pub const DEFAULT_TIMEOUT: u32 = 1000;

pub struct SharedPool {
    pub pool: Pool<SlotMeta>,
    /// Milliseconds from any start; wraps.
    pub now: u32,
    /// Milliseconds without additions after which a slot is reclaimed.
    pub timeout: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is in its slot, which waits for more.
    In(Reason),
    /// The packet is something to be sent on now.
    On(Reason),
}

impl SharedPool {
    /// Returns one of `shards` pools of `slots` slots for chunks of at most `max_elements`.
    pub fn new(slots: u32, max_elements: u16, shards: u16) -> Result<SharedPool, NoMemory> {
        Ok(SharedPool { pool: Pool::new(slots, max_elements, 1, shards)?, now: 0, timeout: DEFAULT_TIMEOUT })
    }

    pub fn slots(&self) -> u32 {
        self.pool.slots()
    }

    /// Returns the number of slots in use.
    pub fn held(&self) -> u32 {
        self.pool.slots.iter().filter(|meta| meta.owner != 0).count() as u32
    }

    /// Does to the slot what the decision says. What is to be sent on replaces the packet, of which `header`
    /// is the header as it counts.
    pub fn contribute(
        &mut self,
        header: &Header,
        c: &Contribution,
        packet: &mut [u8],
    ) -> Result<Taken, Reason> {
        let (now, timeout) = (self.now, self.timeout);
        let (head, payload) = packet.split_at_mut_checked(HEADER_LEN).ok_or(Reason::BadLength)?;
        let slot = self.pool.get(header.slot, 0);
        let slot = slot.and_then(|(meta, values)| Some((meta, values.get_mut(..header.elements.into())?)));
        let Some((meta, values)) = slot else {
            // Admission lets none pass without a slot but those that pass all slots.
            head.copy_from_slice(&dynamic::passed(header).to_bytes());
            return Ok(Taken::On(Reason::Passed));
        };
        let before = *meta;
        let (mut after, action) = dynamic::decide(&before, c, now, timeout);
        let adds = matches!(action, Action::Add | Action::Complete | Action::Flush { adds: true });
        let overflowed = match action {
            Action::Store => {
                values::store(values, payload);
                false
            }
            _ if adds => add(values, payload, header.has(flag::MAXIMUM)),
            _ => false,
        };
        let overflow = if overflowed { flag::OVERFLOW } else { 0 };
        if matches!(action, Action::Add | Action::Complete) {
            after.flags |= overflow;
        }
        *meta = after;
        let (answer, reason) = match action {
            Action::Store if before.is_held() => return Ok(Taken::In(Reason::Reclaimed)),
            Action::Store | Action::Add => return Ok(Taken::In(Reason::Added)),
            Action::Drop => return Err(Reason::Duplicate),
            Action::Complete => (dynamic::sum(header, &after), Reason::Forwarded),
            Action::Flush { .. } => (dynamic::flushed(header, &before), Reason::Flushed),
            Action::Pass => (dynamic::passed(header), Reason::Passed),
            Action::Collide => (dynamic::collided(header), Reason::Collided),
        };
        if matches!(action, Action::Complete | Action::Flush { .. }) {
            values::write(payload, values);
        }
        head.copy_from_slice(&Header { flags: answer.flags | overflow, ..answer }.to_bytes());
        Ok(Taken::On(reason))
    }

    /// Frees the slot that a result names of the chunk that the result is of.
    pub fn release(&mut self, header: &Header) {
        let (now, timeout) = (self.now, self.timeout);
        let owner = dynamic::owner(header.job, header.epoch, header.lane);
        if let Some((meta, _)) = self.pool.get(header.slot, 0) {
            *meta = dynamic::release(meta, owner, header.seq, now, timeout);
        }
    }
}

/// Adds the elements of `payload`, or takes the larger ones; says whether a sum was clamped.
fn add(values: &mut [i32], payload: &[u8], larger: bool) -> bool {
    if larger {
        values::maximum(values, payload);
        return false;
    }
    values::add_saturating(values, payload)
}
