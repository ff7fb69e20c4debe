//! The completion word of an operation: 64 bits of a client's region, by which the client learns of the end
//! without a system call.

use std::sync::Arc;

use sumac_api::{Code, Failure, WORD_COMPLETE, WORD_FAILED};
use sumac_memory::{LeaseError, Word};

use super::region::MappedRegion;

/// The word is set once: by [`CompletionWord::set`], or when it is dropped, as that of an operation that has
/// failed.
#[derive(Debug)]
pub(super) struct CompletionWord {
    word: Option<Word>,
    /// Stays mapped while the word is leased; dropped last.
    region: Arc<MappedRegion>,
}

impl CompletionWord {
    /// `handle`: the region's.
    pub(super) fn new(
        region: &Arc<MappedRegion>,
        handle: u64,
        offset: u64,
    ) -> Result<CompletionWord, Failure> {
        let word =
            region.shared.word(usize::try_from(offset).unwrap_or(usize::MAX - 7)).map_err(|error| {
                let (code, hint) = match error {
                    LeaseError::Outside { .. } => (Code::OutOfRange, "register a larger region"),
                    LeaseError::Unaligned { .. } => (Code::Misaligned, "place it at a multiple of 8 bytes"),
                    LeaseError::Busy { .. } => {
                        (Code::RangeBusy, "each outstanding operation has a word of its own")
                    }
                };
                Failure::new(code, format!("completion_word, region {handle}: {error}")).hint(hint)
            })?;
        Ok(CompletionWord { word: Some(word), region: region.clone() })
    }

    /// Leaves the word to another daemon.
    pub(super) fn hand_over(mut self) {
        drop(self.word.take());
    }

    pub(super) fn set(mut self, is_complete: bool) {
        self.end(if is_complete { WORD_COMPLETE } else { WORD_FAILED });
    }

    fn end(&mut self, value: u64) {
        if let Some(word) = self.word.take()
            && let Err(error) = word.release_with(value)
        {
            self.region.lose(&error);
        }
    }
}

impl Drop for CompletionWord {
    fn drop(&mut self) {
        self.end(WORD_FAILED);
    }
}

#[cfg(test)]
mod tests {

    use sumac_memory::SharedRegion;

    use super::*;

    /// A client's mapping, and the daemon's.
    fn regions() -> (SharedRegion, Arc<MappedRegion>) {
        let (mine, fd) = SharedRegion::create(4096).unwrap();
        (mine, MappedRegion::map(fd, 4096).unwrap())
    }

    #[test]
    fn the_word_is_set_once_and_a_dropped_one_has_failed() {
        let (mine, theirs) = regions();
        let word = mine.word(64).unwrap();
        CompletionWord::new(&theirs, 1, 64).unwrap().set(true);
        assert_eq!(word.load(), WORD_COMPLETE);
        CompletionWord::new(&theirs, 1, 64).unwrap().set(false);
        assert_eq!(word.load(), WORD_FAILED);
        word.store(0);
        let outstanding = CompletionWord::new(&theirs, 1, 64).unwrap();
        assert_eq!(word.load(), 0);
        drop(outstanding);
        assert_eq!(word.load(), WORD_FAILED);
    }

    #[test]
    fn a_word_that_cannot_be_is_refused_by_its_reason() {
        let (_mine, theirs) = regions();
        let _outstanding = CompletionWord::new(&theirs, 1, 64).unwrap();
        let cases = [
            (4096, Code::OutOfRange, "4096"),
            (u64::MAX - 7, Code::OutOfRange, "region 7"),
            (4090, Code::Misaligned, "multiple of 8"),
            (64, Code::RangeBusy, "64..72"),
        ];
        for (offset, code, text) in cases {
            let failure = CompletionWord::new(&theirs, 7, offset).map(|_| ()).unwrap_err();
            assert_eq!(failure.code, code, "{failure}");
            assert!(failure.to_string().contains(text), "{failure}");
        }
    }
}
