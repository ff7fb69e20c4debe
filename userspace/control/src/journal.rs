//! The coordinator's journal: an append-only file of records, each with its length and checksum.
//!
//! A record that was written in part when the process or machine ended is the last one, and is dropped. One
//! of another release, which this one cannot read, is skipped: those behind it count. Records that grant
//! something are on the disk before anybody acts on them; the others survive the end of the process only.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use thiserror::Error;

use crate::{coordinator::Record, server::stats::JournalStats, state_dir::private};

/// Time that another server may take to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const FILE: &str = "journal";
/// Bytes before each record: its length and CRC-32, little endian.
const FRAME_LEN: usize = 8;
/// A journal that has grown by this much is compacted.
const COMPACT_AT: u64 = 32 << 20;

#[derive(Debug, Error)]
pub enum JournalError {
    #[error("another control plane uses the state directory {0}: give each its own with --state-dir")]
    InUse(PathBuf),
    #[error("the journal in the state directory {path}: {source}; give another directory with --state-dir")]
    Io { path: PathBuf, source: io::Error },
}

#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    file: File,
    /// Held so that no other server uses the directory.
    _lock: File,
    len: u64,
    compacted_len: u64,
    /// Records written since it was opened.
    written: u64,
}

impl Journal {
    pub fn open(directory: &Path) -> Result<(Journal, Vec<Record>), JournalError> {
        let failed = |source| JournalError::Io { path: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = private().open(directory.join("lock")).map_err(failed)?;
        // An earlier server may be about to end.
        let deadline = Instant::now() + LOCK_TIMEOUT;
        while lock.try_lock().is_err() {
            if Instant::now() >= deadline {
                return Err(JournalError::InUse(directory.to_owned()));
            }
            thread::sleep(LOCK_TIMEOUT / 100);
        }
        let mut file = private().read(true).open(directory.join(FILE)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let (records, len) = read(&bytes);
        if len < bytes.len() {
            tracing::warn!(
                dropped = bytes.len() - len,
                "the end of the journal was written in part, and is dropped"
            );
            file.set_len(len as u64).map_err(failed)?;
            io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(failed)?;
        }
        let len = len as u64;
        Ok((
            Journal {
                directory: directory.to_owned(),
                file,
                _lock: lock,
                len,
                compacted_len: len,
                written: 0,
            },
            records,
        ))
    }

    /// Appends records; durable ones are on the disk when this returns.
    pub fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let bytes = encode(records);
        self.file.write_all(&bytes).map_err(|source| self.failed(source))?;
        self.len += bytes.len() as u64;
        self.written += records.len() as u64;
        if records.iter().any(Record::is_durable) {
            self.file.sync_data().map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    pub fn stats(&self) -> JournalStats {
        JournalStats { bytes: self.len, records: self.written, failures: 0 }
    }

    pub fn is_large(&self) -> bool {
        self.len >= self.compacted_len + COMPACT_AT
    }

    pub fn compact(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let bytes = encode(records);
        let (path, part) = (self.directory.join(FILE), self.directory.join("journal.part"));
        let replaced = private().truncate(true).open(&part).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_data()?;
            fs::rename(&part, &path)?;
            File::open(&self.directory)?.sync_all()?;
            Ok(file)
        });
        self.file = replaced.map_err(|source| self.failed(source))?;
        (self.len, self.compacted_len) = (bytes.len() as u64, bytes.len() as u64);
        Ok(())
    }

    fn failed(&self, source: io::Error) -> JournalError {
        JournalError::Io { path: self.directory.clone(), source }
    }
}

pub(crate) fn encode(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A record has no map with keys that are no strings, so that this does not fail.
    for json in records.iter().filter_map(|record| serde_json::to_vec(record).ok()) {
        bytes.extend((json.len() as u32).to_le_bytes());
        bytes.extend(crc32fast::hash(&json).to_le_bytes());
        bytes.extend(json);
    }
    bytes
}

/// Reads records up to the first that is not whole; returns the length of those before.
pub(crate) fn read(bytes: &[u8]) -> (Vec<Record>, usize) {
    let (mut records, mut len, mut skipped) = (Vec::new(), 0, 0);
    while let Some((json, size)) = bytes.get(len..).and_then(read_one) {
        match serde_json::from_slice(json) {
            Ok(record) => records.push(record),
            Err(error) => {
                tracing::debug!(%error, at = len, "a record of the journal is of another release");
                skipped += 1;
            }
        }
        len += size;
    }
    if skipped > 0 {
        tracing::warn!(
            skipped,
            read = records.len(),
            "records of the journal are of another release, and are skipped"
        );
    }
    (records, len)
}

/// Returns the text of the first record with its length in the file; none if it is not whole.
fn read_one(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (len, checksum) = (usize::try_from(number(0)?).ok()?, number(4)?);
    let end = FRAME_LEN.checked_add(len)?;
    let json = bytes.get(FRAME_LEN..end)?;
    // Zeros, as a file system may leave them at the end, have the checksum of no text.
    (len > 0 && crc32fast::hash(json) == checksum).then_some((json, end))
}
