//! The agreement on a transfer before its data: the receiver reports what it expects, and the sender
//! compares.
//!
//! It is the payload of a [`Kind::Control`](sumac_wire::Kind::Control) packet: five words in network order. A
//! sender that has something else returns its own values, with
//! [`flag::MISMATCH`](sumac_wire::header::flag::MISMATCH), so that the errors on both sides have both.

use std::fmt;

use serde::{Deserialize, Serialize};
use sumac_job::DType;
use sumac_wire::header::ELEMENT_LEN;

/// Words of an agreement.
pub(super) const WORDS: u16 = 5;

/// A transfer as one of its sides means it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The operation's signature.
    pub signature: u32,
    pub dtype: DType,
    /// Values of the transfer.
    pub count: u32,
    /// Values in a chunk.
    pub chunk: u32,
    /// The fraction that may be missing.
    pub loss_bound: f32,
}

impl Agreement {
    pub(super) fn write(&self, words: &mut [u8]) {
        let dtype = DType::ALL.iter().position(|dtype| *dtype == self.dtype).unwrap_or_default() as u32;
        let values = [self.signature, dtype, self.count, self.chunk, self.loss_bound.to_bits()];
        for (word, value) in words.chunks_exact_mut(ELEMENT_LEN).zip(values) {
            word.copy_from_slice(&value.to_be_bytes());
        }
    }

    pub(super) fn read(words: &[u8]) -> Option<Agreement> {
        let mut words = words.chunks_exact(ELEMENT_LEN).filter_map(|word| word.first_chunk().copied());
        let mut next = || words.next().map(u32::from_be_bytes);
        let (signature, dtype, count, chunk, bound) = (next()?, next()?, next()?, next()?, next()?);
        let dtype = *DType::ALL.get(dtype as usize)?;
        let loss_bound = f32::from_bits(bound);
        (0.0..=1.0).contains(&loss_bound).then_some(Agreement { signature, dtype, count, chunk, loss_bound })
    }

    /// Whether both mean the same transfer. The bound is the receiver's alone.
    pub(super) fn fits(&self, other: &Agreement) -> bool {
        let values = |of: &Agreement| (of.signature, of.dtype, of.count, of.chunk);
        values(self) == values(other)
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Agreement { dtype, count, loss_bound, .. } = self;
        write!(f, "{count} values of {} with loss bound {loss_bound}", dtype.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_not() {
        let agreement =
            Agreement { signature: 7, dtype: DType::Bfloat16, count: 1000, chunk: 704, loss_bound: 0.1 };
        let mut words = [0; 20];
        agreement.write(&mut words);
        assert_eq!(Agreement::read(&words), Some(agreement));
        assert_eq!(Agreement::read(&words[..16]), None);
        for (at, value) in [(1, 9), (4, 2.0f32.to_bits()), (4, f32::NAN.to_bits()), (4, (-0.1f32).to_bits())]
        {
            let mut bad = words;
            bad[at * 4..][..4].copy_from_slice(&value.to_be_bytes());
            assert_eq!(Agreement::read(&bad), None, "{at} {value}");
        }
    }

    #[test]
    fn the_bound_is_the_receivers() {
        let ours = Agreement { signature: 7, dtype: DType::Float32, count: 10, chunk: 4, loss_bound: 0.0 };
        assert!(ours.fits(&Agreement { loss_bound: 0.3, ..ours }));
        assert!(
            !ours.fits(&Agreement { count: 11, ..ours }) && !ours.fits(&Agreement { signature: 8, ..ours })
        );
    }
}
