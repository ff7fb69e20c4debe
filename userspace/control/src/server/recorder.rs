//! Journals what the coordinator remembers: a change takes effect once it is on the disk.

use std::time::Duration;

use crate::{
    coordinator::{Coordinator, Time},
    journal::{Journal, JournalError},
    server::stats::JournalStats,
};

/// Time between two attempts to write a journal that could not be written, while nobody asks.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) struct Recorder {
    journal: Journal,
    /// The reason for which the journal cannot be written, and the time of the next attempt.
    failure: Option<(String, Time)>,
}

impl Recorder {
    /// Writes all that the coordinator remembers. If that fails, running jobs go on, and new ones are
    /// refused.
    pub fn new(journal: Journal, now: Time, coordinator: &mut Coordinator) -> Recorder {
        let mut recorder = Recorder { journal, failure: None };
        coordinator.poll_records();
        let written = recorder.compact(coordinator);
        recorder.conclude(now, coordinator, written);
        recorder
    }

    /// Journals what has changed. What cannot be written is taken back.
    pub fn record(&mut self, now: Time, coordinator: &mut Coordinator) {
        let records = coordinator.poll_records();
        let is_due = self.failure.as_ref().is_some_and(|(_, retry_at)| now >= *retry_at);
        if !records.is_empty() || is_due {
            let written = match self.journal.is_behind() || self.failure.is_some() {
                true => self.compact(coordinator),
                false => match self.journal.append(&records) {
                    Ok(()) => {
                        coordinator.on_recorded(&records);
                        Ok(())
                    }
                    // A new file may succeed where the old one does not.
                    Err(error) => self.compact(coordinator).map_err(|_| error),
                },
            };
            self.conclude(now, coordinator, written);
        }
        if self.journal.is_large()
            && let Err(error) = self.compact(coordinator)
        {
            tracing::warn!(%error, "the journal grows: it cannot be compacted");
        }
    }

    /// Writes the journal anew if it could not be written. An error is the reason, for who asks for something
    /// that is to be journaled.
    pub fn repair(&mut self, now: Time, coordinator: &mut Coordinator) -> Result<(), String> {
        if self.failure.is_some() {
            let written = self.compact(coordinator);
            self.conclude(now, coordinator, written);
        }
        self.failure.as_ref().map_or(Ok(()), |(why, _)| Err(why.clone()))
    }

    pub fn stats(&self) -> JournalStats {
        self.journal.stats()
    }

    fn compact(&mut self, coordinator: &mut Coordinator) -> Result<(), JournalError> {
        let records = coordinator.all_records();
        self.journal.compact(&records)?;
        coordinator.on_recorded(&records);
        Ok(())
    }

    fn conclude(&mut self, now: Time, coordinator: &mut Coordinator, written: Result<(), JournalError>) {
        match written {
            Ok(()) => {
                if self.failure.take().is_some() {
                    tracing::info!("the journal can be written again; jobs may be opened");
                }
            }
            Err(error) => {
                let why = error.to_string();
                if self.failure.is_none() {
                    tracing::error!(why, "no job can be opened; running jobs go on");
                }
                coordinator.on_unrecorded(now, &why);
                // The next compaction has these, as all that the coordinator remembers.
                coordinator.poll_records();
                self.failure = Some((why, now + RETRY));
            }
        }
    }
}
