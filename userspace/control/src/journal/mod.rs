//! The coordinator's journal: an append-only file of records, each with its length and checksum.
//!
//! A record that was written in part when the process or machine ended is the last one, and is dropped. One
//! of another release, which this one cannot read, is skipped: those behind it count. Records that grant
//! something are on the disk before anybody acts on them; the others survive the end of the process only.
//!
//! After a write that failed nothing is appended: the file may end with a part of a record, and after a
//! failed `fsync` its pages may be lost although the next one succeeds. [`Journal::compact`] then writes a
//! new file.

mod records;
#[cfg(test)]
pub(crate) mod simulated;
mod storage;

use std::{
    fmt,
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use thiserror::Error;

#[cfg(test)]
pub(crate) use self::records::encode;
use self::storage::{Directory, write_all};
pub(crate) use self::{
    records::read,
    storage::{FileOf, Storage},
};
use crate::{
    coordinator::Record,
    server::stats::JournalStats,
    state_dir::{check_file, create_directory, private},
};

/// Time that another server may take to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// A journal that has grown by this much is compacted.
const COMPACT_AT: u64 = 32 << 20;

#[derive(Debug, Error)]
pub enum JournalError {
    #[error("another control plane uses the state directory {0}: give each its own with --state-dir")]
    InUse(PathBuf),
    #[error("the journal in the state directory {path}: {source}; give another directory with --state-dir")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot write the journal in {path}: {source}; make it writable, or free space there")]
    Write { path: PathBuf, source: io::Error },
}

pub struct Journal {
    directory: PathBuf,
    storage: Box<dyn Storage>,
    /// Held so that no other server uses the directory.
    _lock: Option<File>,
    len: u64,
    compacted_len: u64,
    /// Records written since it was opened.
    written: u64,
    failures: u64,
    /// The file does not have all records, or not on disk.
    is_behind: bool,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("directory", &self.directory).field("len", &self.len).finish()
    }
}

impl Journal {
    pub fn open(directory: &Path) -> Result<(Journal, Vec<Record>), JournalError> {
        let failed = |source| JournalError::Open { path: directory.to_owned(), source };
        create_directory(directory).map_err(failed)?;
        let lock = private().open(directory.join("lock")).map_err(failed)?;
        check_file(&lock, &directory.join("lock")).map_err(failed)?;
        // An earlier server may be about to end.
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    thread::sleep(LOCK_TIMEOUT / 100);
                }
                Err(TryLockError::WouldBlock) => return Err(JournalError::InUse(directory.to_owned())),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        let storage = Box::new(Directory::open(directory).map_err(failed)?);
        let (mut journal, records) = Journal::read(directory, storage)?;
        journal._lock = Some(lock);
        Ok((journal, records))
    }

    /// Reads the records of a journal, and removes what was written in part.
    pub(crate) fn read(
        directory: &Path,
        mut storage: Box<dyn Storage>,
    ) -> Result<(Journal, Vec<Record>), JournalError> {
        let failed = |source| JournalError::Open { path: directory.to_owned(), source };
        let bytes = storage.read().map_err(failed)?;
        let (records, len) = read(&bytes);
        if len < bytes.len() {
            tracing::warn!(
                dropped = bytes.len() - len,
                "the end of the journal was written in part, and is dropped"
            );
            storage.truncate(len as u64).map_err(failed)?;
        }
        let len = len as u64;
        let journal = Journal {
            directory: directory.to_owned(),
            storage,
            _lock: None,
            len,
            compacted_len: len,
            written: 0,
            failures: 0,
            is_behind: false,
        };
        Ok((journal, records))
    }

    /// Appends records; durable ones are on the disk when this returns. After an error the journal is behind.
    pub fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let bytes = records::encode(records);
        let appended = write_all(&mut *self.storage, FileOf::Journal, &bytes).and_then(|()| {
            let is_durable = records.iter().any(Record::is_durable);
            if is_durable { self.storage.sync(FileOf::Journal) } else { Ok(()) }
        });
        if let Err(source) = appended {
            self.is_behind = true;
            // Room for what comes next. A part of a record that stays is the last one: nothing is appended.
            if let Err(error) = self.storage.truncate(self.len) {
                tracing::debug!(%error, "the part of a record stays at the end of the journal");
            }
            return Err(self.failed(source));
        }
        self.len += bytes.len() as u64;
        self.written += records.len() as u64;
        Ok(())
    }

    /// Whether a write has failed since all records were on the disk. Nothing is appended then.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub fn stats(&self) -> JournalStats {
        JournalStats { bytes: self.len, records: self.written, failures: self.failures }
    }

    pub fn is_large(&self) -> bool {
        self.len >= self.compacted_len + COMPACT_AT
    }

    /// Writes these records, in place of all earlier ones.
    pub fn compact(&mut self, records: &[Record]) -> Result<(), JournalError> {
        // Also if this fails: the next attempt comes after as much growth.
        self.compacted_len = self.len;
        let bytes = records::encode(records);
        let replaced = self.write_part(&bytes).and_then(|()| self.storage.rename_part());
        if let Err(source) = replaced {
            // A part of a file takes up room on a full disk.
            if let Err(error) = self.storage.remove_part() {
                tracing::debug!(%error, "journal.part stays");
            }
            return Err(self.failed(source));
        }
        (self.len, self.compacted_len) = (bytes.len() as u64, bytes.len() as u64);
        // Until then the earlier file may come back, without what is appended from now on.
        self.is_behind = true;
        self.storage.sync_directory().map_err(|source| self.failed(source))?;
        self.is_behind = false;
        Ok(())
    }

    fn write_part(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.storage.create_part()?;
        write_all(&mut *self.storage, FileOf::Part, bytes)?;
        self.storage.sync(FileOf::Part)
    }

    fn failed(&mut self, source: io::Error) -> JournalError {
        self.failures += 1;
        JournalError::Write { path: self.directory.clone(), source }
    }
}
