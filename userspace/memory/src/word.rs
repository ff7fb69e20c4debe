//! A 64-bit word in shared memory by which the daemon reports to a polling trainer that its result lies
//! there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lease::{Lease, LeaseError, Lender};

/// A word of a region, leased exclusively until its end or [`Word::release_with`].
///
/// All accesses of this process are atomic. The other process may write anything at any time; every value is
/// valid.
#[derive(Debug)]
pub struct Word {
    lease: Lease,
}

impl Word {
    /// Bytes of a word, and its alignment in the region.
    pub const LEN: usize = size_of::<u64>();

    pub(crate) fn new(lender: &Arc<Lender>, offset: usize) -> Result<Word, LeaseError> {
        if !offset.is_multiple_of(Word::LEN) {
            return Err(LeaseError::Unaligned { offset, alignment: Word::LEN });
        }
        let range = offset..offset.saturating_add(Word::LEN);
        Ok(Word { lease: Lender::lease(lender, range.clone(), range)? })
    }

    /// Returns the value. What the other process wrote before it stored the value is visible afterwards
    /// (acquire).
    pub fn load(&self) -> u64 {
        self.cell().load(Ordering::Acquire)
    }

    /// Stores a value, in a region of this process's own. What it wrote before is visible to a process that
    /// loads the value (release).
    pub fn store(&self, value: u64) {
        // Only a write through a memory holder can fail, and a region of this process's own has none.
        let _ = self.set(value);
    }

    /// Ends the lease and stores a value, as [`Word::store`] does. A trainer that sees the value can use the
    /// word in its next operation.
    ///
    /// # Errors
    /// The region was taken over, and the holder of its writable mapping has ended.
    pub fn release_with(self, value: u64) -> io::Result<()> {
        let mut stored = Ok(());
        self.lease.release_with(|| stored = self.set(value));
        stored
    }

    fn set(&self, value: u64) -> io::Result<()> {
        match self.lease.held() {
            // The system call orders it behind earlier writes. Values differ in one byte, so none is torn.
            Some((held, offset)) => held.write(offset, &value.to_ne_bytes()),
            None => {
                self.cell().store(value, Ordering::Release);
                Ok(())
            }
        }
    }

    fn cell(&self) -> &AtomicU64 {
        let word = self.lease.word();
        // SAFETY: the word lies in the mapping, which the lease keeps, and is aligned: mappings begin at a
        // page, and `new` has checked the offset. No other lease has these bytes, so that this process
        // accesses them by this cell alone.
        unsafe { AtomicU64::from_ptr(word) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedRegion;

    #[test]
    fn a_word_is_aligned_inside_and_exclusive() {
        let region = SharedRegion::anonymous(96);
        for offset in [1, 4, 92] {
            let expected = LeaseError::Unaligned { offset, alignment: 8 };
            assert_eq!(region.word(offset).map(|_| ()), Err(expected));
        }
        for offset in [96, 1 << 40, usize::MAX - 7] {
            assert!(matches!(region.word(offset), Err(LeaseError::Outside { .. })), "{offset}");
        }
        let _tensor = region.lease(0..64, 0..64).unwrap();
        assert!(matches!(region.word(56), Err(LeaseError::Busy { .. })), "an operation writes there");
        let _word = region.word(88).unwrap();
        assert!(matches!(region.word(88), Err(LeaseError::Busy { .. })));
        assert!(region.lease(64..96, 0..0).is_err(), "an operation would read it");
    }

    #[test]
    fn a_released_word_can_be_leased_once_its_value_is_seen() {
        let region = SharedRegion::anonymous(4096);
        for _ in 0..200 {
            let word = region.word(8).unwrap();
            word.store(0);
            let observer = region.clone();
            std::thread::scope(|scope| {
                scope.spawn(|| word.release_with(7).unwrap());
                // The lease ends before or with the store.
                let again = loop {
                    if let Ok(again) = observer.word(8) {
                        break again;
                    }
                    std::thread::yield_now();
                };
                assert_eq!(again.load(), 7);
            });
        }
    }
}
