//! The state of slots, as the program's registers hold it.

use sumac_agg_p4::sizes::Sizes;
use sumac_vectors::record::{Job, LaneSpent, SharedSlot, SharedTransition, Slot, SlotVersion, Transition};
use sumac_wire::{
    BLOCK_ELEMENTS,
    header::flag,
    slot::{owner, state},
    workers::all_workers,
};

use crate::model::{Program, thrift::Thrift};

/// The bit of a holder whose sum has left (p4/common/shared_slot.p4).
const SUMMED: u32 = 0x0200_0000;
/// Lanes of a job in `lanes_next`.
const LANES: u32 = 64;

/// Reads slots of the program.
pub struct Registers<'a> {
    pub thrift: &'a mut Thrift,
    pub program: &'a Program,
}

impl Registers<'_> {
    /// Returns a static job's slot after a packet. What the program does not keep, or keeps nothing of yet,
    /// is as expected.
    pub fn slot(&mut self, job: &Job, expected: &Transition) -> Slot {
        let Transition { index, before, after } = expected;
        let versions = [0, 1].map(|number| {
            let (before, after) = (&before.versions[number], &after.versions[number]);
            let version = self.version(job, *index, number, after);
            // Values that do not change were read before.
            let has_same_values = version.values.len() == after.values.len() && before == after;
            if has_same_values { SlotVersion { values: after.values.clone(), ..version } } else { version }
        });
        let is_used = versions.iter().any(|version| *version != SlotVersion::default());
        let lane_next = if job.reassigns { self.lane_next(job, *index) } else { after.lane_next };
        Slot {
            owner: if is_used { owner(job.job, job.epoch) } else { after.owner },
            versions,
            lane_next,
            spent: after.spent.clone(),
            lane_spent: self.lane_spent(job, *index),
        }
    }

    fn version(&mut self, job: &Job, slot: u32, number: usize, expected: &SlotVersion) -> SlotVersion {
        let place = slot + number as u32 * Sizes::default().static_slots;
        if self.word("holders", place) != owner(job.job, job.epoch) {
            return SlotVersion::default();
        }
        let (size, state) = (self.word("sizes", place), self.word("states", place) as u8);
        let elements = size & 0x7fff;
        let is_maximum = size >> 15 != 0;
        let all = all_workers(job.workers.len() as u16);
        let has_exponent = state & (state::ROUND | state::AGREED) != 0;
        let next = self.pair("next_chunks", place)[1];
        let (seq, missing) = (self.word("chunks", place), self.word("missing_senders", place));
        let is_final = state & state::FINAL != 0;
        let state = match job.bounded {
            // The program marks whoever completes a version without some workers, too.
            true if is_final && missing != 0 => state | state::PARTIAL,
            true => state & !state::PARTIAL,
            false => state,
        };
        SlotVersion {
            seq,
            seen: all & !missing,
            received: match job.bounded {
                true if is_final => self.received(slot, number, seq, all),
                true => 0,
                // Of jobs whose sums hold all workers nobody keeps it.
                false if job.whole => 0,
                false => expected.received,
            },
            next: if is_final { next } else { expected.next },
            tensor: self.word("signatures", place),
            flags: merged(self.word("merged_flags", place)) | if is_maximum { flag::MAXIMUM } else { 0 },
            exponent: if has_exponent { self.word("exponents", place) as i8 } else { expected.exponent },
            next_exponent: match elements {
                0 => expected.next_exponent,
                _ => self.word("next_exponents", place) as i8,
            },
            state,
            values: self.chunk(place, elements, &expected.values),
        }
    }

    /// Returns the senders that are known to have the result of a version that is final.
    fn received(&mut self, slot: u32, number: usize, seq: u32, all: u32) -> u32 {
        let [lacking, of] = self.pair(&format!("lacking_{number}"), slot);
        // A chunk that is another one's is shown as everybody's bits.
        if of == seq { all & !lacking } else { u32::MAX }
    }

    /// Returns the budget of a slot's lane; none of a job that has none.
    fn lane_spent(&mut self, job: &Job, index: u32) -> LaneSpent {
        let lane = (index - job.slot_base) >> job.lane_slots_log2;
        let lane = u32::from(job.job) * LANES + lane;
        // A program without budgets has none of the registers.
        if !job.bounded || self.word("terms_owners", lane) != owner(job.job, job.epoch) {
            return LaneSpent::default();
        }
        LaneSpent {
            owner: owner(job.job, job.epoch),
            operation: self.word("terms_operations", lane),
            end: self.word("terms_ends", lane),
            limit: self.word("terms_limits", lane),
            workers: self.word("terms_workers", lane),
            spent_of: self.word("spent_operations", lane),
            spent: self.word("spent_chunks", lane),
        }
    }

    /// Returns the chunk that the lane's next completed slot takes; the program keeps the one that was drawn
    /// last.
    fn lane_next(&mut self, job: &Job, index: u32) -> u32 {
        let lane = (index - job.slot_base) >> job.lane_slots_log2;
        match self.pair("lanes_next", u32::from(job.job) * LANES + lane) {
            [of, drawn] if of == owner(job.job, job.epoch) => drawn.wrapping_add(1),
            _ => 2 << job.lane_slots_log2,
        }
    }

    /// Returns a slot of dynamic jobs after a packet.
    pub fn shared_slot(&mut self, expected: &SharedTransition) -> SharedSlot {
        let sizes = Sizes::default();
        let slot = u32::from(expected.shard) * sizes.dynamic_slots + expected.slot;
        let holder = self.word("shared_holders", slot);
        let (owner, summed) = (holder & !SUMMED, holder & SUMMED != 0);
        let (refused_owner, refused_seq) =
            (self.word("refused_owners", slot), self.word("refused_chunks", slot));
        if owner == 0 {
            return SharedSlot { refused_owner, refused_seq, ..SharedSlot::default() };
        }
        let kind = self.word("kinds", slot);
        let is_maximum = if kind >> 17 & 1 == 1 { flag::MAXIMUM } else { 0 };
        let is_second = if kind >> 16 & 1 == 1 { flag::LEVEL } else { 0 };
        let values = match expected.before == expected.after {
            true => expected.after.values.clone(),
            false => self.block(sizes.shared_cell(slot), kind & 0xffff, &expected.after.values),
        };
        SharedSlot {
            owner,
            seq: self.word("shared_chunks", slot),
            bitmap: self.word("bitmaps", slot),
            tensor: self.word("shared_signatures", slot),
            flags: merged(self.word("shared_flags", slot)) | is_maximum | is_second,
            exponent: (kind >> 24) as i8,
            next_exponent: self.word("shared_next_exponents", slot) as i8,
            received: self.word("received_by_all", slot),
            refused_owner,
            refused_seq,
            summed,
            values,
        }
    }

    /// Returns the values of a static version: blocks of [`BLOCK_ELEMENTS`] in cells of their own, and the
    /// rest of the chunk.
    fn chunk(&mut self, place: u32, elements: u32, expected: &[i32]) -> Vec<i32> {
        let (sizes, block) = (Sizes::default(), BLOCK_ELEMENTS as u32);
        let firsts = (0..elements).step_by(BLOCK_ELEMENTS);
        let blocks = firsts.map(|first| {
            let expected = expected.get(first as usize..).unwrap_or_default();
            self.block(sizes.cell(place, first / block), (elements - first).min(block), expected)
        });
        blocks.collect::<Vec<_>>().concat()
    }

    /// Returns the values of a block. They are where the headers of their number's binary digits are summed:
    /// 32 elements in 16 pairs, 16 in 8, and so on, the first half of each header in the first words; the
    /// last pair has two headers.
    ///
    /// Thrift has signed numbers of 64 bits: of a pair with a negative first word it shows the largest
    /// number, and the two words are taken for those expected.
    fn block(&mut self, cell: u32, elements: u32, expected: &[i32]) -> Vec<i32> {
        let mut values: Vec<Option<i32>> = Vec::new();
        let mut first = 0;
        for digit in [32, 16, 8, 4, 2] {
            let pairs = digit / 2;
            if elements & digit != 0 || elements == 64 {
                let sums: Vec<_> = (first..first + pairs).map(|pair| self.sums(pair, cell)).collect();
                values.extend([0, 1].iter().flat_map(|half| sums.iter().map(|sum| sum[*half])));
            }
            first += pairs;
        }
        let last = match elements {
            64 => 2,
            _ => elements as usize % 2,
        };
        if last != 0 {
            values.extend(&self.sums(first, cell)[..last]);
        }
        let expected = expected.iter().map(|value| Some(*value)).chain(std::iter::repeat(None));
        values.iter().zip(expected).map(|(value, expected)| value.or(expected).unwrap_or_default()).collect()
    }

    fn sums(&mut self, pair: u32, cell: u32) -> [Option<i32>; 2] {
        match self.pair(&format!("pair_{pair}.sums"), cell) {
            [0x7fff_ffff, u32::MAX] => [None; 2],
            words => words.map(|word| Some(word as i32)),
        }
    }

    fn word(&mut self, name: &str, index: u32) -> u32 {
        self.thrift.register(self.program.name(name), index) as u32
    }

    fn pair(&mut self, name: &str, index: u32) -> [u32; 2] {
        let both = self.thrift.register(self.program.name(name), index);
        [(both >> 32) as u32, both as u32]
    }
}

/// Returns the flags of a packet for those of a slot: 8, 4 and 2.
fn merged(flags: u32) -> u16 {
    let bits = [(8, flag::OVERFLOW), (4, flag::ECN_ECHO), (2, flag::NOT_FINITE)];
    bits.iter().filter(|(bit, _)| flags & bit != 0).fold(0, |all, (_, flag)| all | flag)
}
