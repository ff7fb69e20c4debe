//! What must hold of every packet that is sent and of every contribution that is added, whatever the network does.

use std::collections::BTreeMap;

use sumac_wire::{Header, Kind, header::flag, slot::Action};

/// What was seen of one incarnation of the job.
#[derive(Default)]
pub struct Ledger {
    /// How often the elements of each sender were taken in: by aggregator, lane, chunk and sender.
    added: BTreeMap<(usize, u32, u32, u16), u32>,
    /// The chunks that each slot had, by its number.
    chunks: BTreeMap<u32, Vec<u32>>,
    /// How far each worker is in that list, by slot and rank.
    reached: BTreeMap<(u32, u16), usize>,
    /// The slot of each chunk, by lane and chunk.
    slots: BTreeMap<(u32, u32), u32>,
}

impl Ledger {
    /// An aggregator took a contribution in.
    pub fn added(&mut self, node: usize, lane_slots: u32, taken: Option<(Header, u16, Action)>) {
        if let Some((header, sender, Action::Store(_) | Action::Add(_))) = taken {
            *self.added.entry((node, header.slot / lane_slots, header.seq, sender)).or_default() += 1;
        }
    }

    /// A worker sends a packet: all workers take the same chunks through a slot, none is more than one chunk ahead
    /// of another, and no chunk is in two slots.
    pub fn sent(&mut self, rank: u16, world: u16, lane_slots: u32, header: &Header) {
        if header.kind == Kind::Probe as u8 {
            return;
        }
        let slot = header.slot;
        let chunks = self.chunks.entry(slot).or_default();
        let before = self.reached.get(&(slot, rank)).copied();
        let here = match before {
            Some(before) if chunks[before] == header.seq => before,
            before => before.map_or(0, |before| before + 1),
        };
        if here == chunks.len() {
            chunks.push(header.seq);
        }
        assert_eq!(chunks[here], header.seq, "rank {rank}, slot {slot}: another chunk than others take");
        self.reached.insert((slot, rank), here);
        for other in 0..world {
            let there = self.reached.get(&(slot, other)).map_or(0, |there| there + 1);
            assert!(
                here <= there,
                "rank {rank} is at chunk {here} of slot {slot}, rank {other} at {there} - 1"
            );
        }
        let first = *self.slots.entry((slot / lane_slots, header.seq)).or_insert(slot);
        assert_eq!(first, slot, "chunk {} is in two slots", header.seq);
        assert_eq!(header.elements == 0, header.has(flag::EXPONENT | flag::QUERY));
    }

    /// Every contribution was added exactly once, and there are as many as there must be.
    pub fn close(&self, contributions: u64) {
        assert!(self.added.values().all(|times| *times == 1), "added other than once: {:?}", self.added);
        assert_eq!(self.added.len() as u64, contributions, "contributions added");
    }
}
