//! Exponents of chunks before they are sent: by look-ahead, and by exponent chunks.

use sumac_wire::{
    Header, Reason,
    admit::payload_len,
    header::{Format, HEADER_LEN, exponent, flag},
};

use super::Core;
use crate::{chunk::ChunkCodec, in_flight::ChunkRecord, pending::Pending};

/// Bytes of a word.
const WORD: usize = 4;

impl Core {
    /// Whether the workers agree on an exponent for chunk `seq`, one of this operation's.
    pub fn needs_exponent(&self, pending: &Pending, seq: u64) -> bool {
        !pending.is_exponents(seq) && self.codec.needs_exponent(&pending.operation)
    }

    /// Whether a chunk is its operation's exponent chunk.
    pub fn is_exponents(&self, record: &ChunkRecord) -> bool {
        self.stream.get(record.operation).is_some_and(|pending| pending.is_exponents(record.seq))
    }

    //= switchml#4.6 block floating point with an exponent one chunk ahead
    /// The exponent of this worker's part of chunk `seq`, an operation at or after number `near` (SwitchML
    /// section 4.6). It goes with an earlier chunk, so that the scale of this one is known with that one's
    /// result.
    pub fn look_ahead(&mut self, seq: u64, near: u64) -> i8 {
        let number = self.stream.find(seq, near);
        let Some(pending) = number.and_then(|number| self.stream.get(number)) else {
            return exponent::UNKNOWN;
        };
        if !self.needs_exponent(pending, seq) {
            return exponent::NONE;
        }
        let first = pending.first(seq);
        let Some(pending) = number.and_then(|number| self.stream.get_mut(number)) else {
            return exponent::UNKNOWN;
        };
        let operation = &mut pending.operation;
        let span = self.codec.span(operation, first);
        self.stats.elements_scanned += ChunkCodec::contributed(operation, span) as u64;
        self.codec.exponent(operation, span)
    }

    /// The words of an exponent chunk: look-ahead knows the exponents of chunks further behind it, by its own
    /// packet or a later one.
    fn exponent_words(&self) -> usize {
        usize::from(self.params.elements).min(self.in_flight.capacity() - 1).max(1)
    }

    /// Writes the exponents of this worker's chunks after an exponent chunk.
    pub(super) fn write_exponents(&mut self, record: &ChunkRecord, header: &mut Header, out: &mut [u8]) {
        let words = self.exponent_words();
        header.elements = words as u16;
        let (elements, _) = out[HEADER_LEN..payload_len(header.elements)].as_chunks_mut::<WORD>();
        let mut near = record.operation;
        for (seq, word) in (record.seq + 1..).zip(elements) {
            let number = self.stream.find(seq, near);
            near = number.unwrap_or(near);
            // A chunk with a result needs none, and its values may be sums already.
            let is_waiting = number.is_some_and(|number| self.stream.waiting(number, seq).is_some());
            let exponent = if is_waiting { self.look_ahead(seq, near) } else { exponent::UNKNOWN };
            *word = i32::from(exponent).to_be_bytes();
        }
    }

    /// Takes the result of an exponent chunk, after checking that it is the one that was asked for.
    pub(super) fn take_exponents(
        &mut self,
        record: &ChunkRecord,
        header: &Header,
        elements: &[u8],
    ) -> Result<(), Reason> {
        if header.format != Format::Int32 as u8 {
            return Err(Reason::BadFormat);
        }
        if header.has(flag::PARTIAL | flag::RAW_FLOAT) {
            return Err(Reason::BadType);
        }
        if usize::from(header.elements) != self.exponent_words() {
            return Err(Reason::WrongElements);
        }
        if (header.offset, header.tensor) != self.identity(record)? {
            return Err(Reason::WrongPlace);
        }
        // A word beyond the exponents' range is one of a worker that is not one of ours; all read it in the
        // same way.
        let exponent =
            |word: &[u8; WORD]| i8::try_from(i32::from_be_bytes(*word)).unwrap_or(exponent::UNKNOWN);
        let (words, _) = elements.as_chunks();
        self.stream.exponents.agree(record.seq, words.iter().map(exponent));
        Ok(())
    }

    /// Allows a chunk to be sent, as one of this operation, or holds it until the exponent chunk that it
    /// needs has its result. `exponent`: the look-ahead's, and afterwards the agreed one.
    pub fn make_ready(&mut self, index: usize, operation: u64, exponent: &mut i8) {
        let seq = self.in_flight.get(index).seq;
        match self.agreed_exponent(seq, operation, *exponent) {
            Some(agreed) => {
                *exponent = agreed;
                self.in_flight.make_ready(index, operation);
            }
            None => self.in_flight.hold(index, operation),
        }
    }

    /// Calls `release` with each chunk that is held, and its operation. It may take the chunk from the queue.
    pub fn for_each_held(&mut self, mut release: impl FnMut(&mut Core, usize, u64)) {
        let mut next = self.in_flight.first_held();
        while let Some(index) = next {
            next = self.in_flight.next_in_queue(index).map(|(index, _)| index);
            let operation = self.in_flight.get(index).operation;
            release(self, index, operation);
        }
    }

    /// The exponent with which chunk `seq`, of this operation, is sent: `looked_ahead` where that is known,
    /// else by the exponent chunk before it, else [`exponent::UNKNOWN`]. `None`: the exponent chunk has no
    /// result yet.
    fn agreed_exponent(&self, seq: u64, operation: u64, looked_ahead: i8) -> Option<i8> {
        let needs = |pending: &Pending| self.needs_exponent(pending, seq);
        if looked_ahead != exponent::UNKNOWN || !self.stream.get(operation).is_some_and(needs) {
            return Some(looked_ahead);
        }
        self.stream.exponents.of(seq, self.exponent_words())
    }
}
