//! The completion word of an operation: 64 bits of a client's region, by which the client learns of the end without a
//! system call.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sumac_api::{Code, Failure, WORD_COMPLETE, WORD_FAILED};
use sumac_memory::{LeaseError, Word};

use super::memory::Region;

/// The place of a word: its region's number, and the offset there.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct WordPlace {
    region: u64,
    offset: u64,
}

/// The word is set once: by [`CompletionWord::set`], or when it is dropped, as that of an operation that has failed.
#[derive(Debug)]
pub(crate) struct CompletionWord {
    word: Option<Word>,
    offset: u64,
    /// Counts as long as the word is leased; dropped last.
    region: Arc<Region>,
}

impl CompletionWord {
    /// `handle`: the region's.
    pub(super) fn new(region: &Arc<Region>, handle: u64, offset: u64) -> Result<CompletionWord, Failure> {
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
        Ok(CompletionWord { word: Some(word), offset, region: region.clone() })
    }

    /// Returns its place, by which another daemon continues; `None` after its end.
    pub(crate) fn place(&self) -> Option<WordPlace> {
        let CompletionWord { word, offset, region } = self;
        word.as_ref().map(|_| WordPlace { region: region.number, offset: *offset })
    }

    /// Leases the word of another daemon's operation. `regions`: by their numbers there.
    pub(crate) fn again(
        WordPlace { region, offset }: &WordPlace,
        regions: &HashMap<u64, Arc<Region>>,
    ) -> Result<CompletionWord, String> {
        let found = regions.get(region).ok_or_else(|| format!("no region {region}"))?;
        CompletionWord::new(found, *region, *offset).map_err(|failure| failure.to_string())
    }

    /// Leaves the word to another daemon.
    pub(crate) fn hand_over(mut self) {
        drop(self.word.take());
    }

    pub(crate) fn set(mut self, is_complete: bool) {
        self.end(if is_complete { WORD_COMPLETE } else { WORD_FAILED });
    }

    fn end(&mut self, value: u64) {
        if let Some(word) = self.word.take() {
            word.release_with(value);
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

    use sumac_memory::{FurtherMappings, SharedRegion};

    use super::*;
    use crate::quotas::Quotas;

    /// A client's mapping, and the daemon's.
    fn regions() -> (SharedRegion, Arc<Region>) {
        let config = crate::config::Config::parse("", "test.toml".as_ref()).unwrap();
        let (mine, fd) = SharedRegion::create(4096).unwrap();
        let theirs = Region::register(&Quotas::new(&config), 0, fd, 4096, FurtherMappings::Allowed);
        (mine, theirs.unwrap())
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
        assert!(theirs.is_leased());
        drop(outstanding);
        assert_eq!(word.load(), WORD_FAILED);
        assert!(!theirs.is_leased());
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
