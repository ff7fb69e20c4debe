//! The journal's bytes: records in JSON, each with its length and checksum.

use crate::coordinator::Record;

/// Bytes before each record: its length and CRC-32, little endian.
const FRAME_LEN: usize = 8;

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
