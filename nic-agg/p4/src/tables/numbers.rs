//! The numbers of workers, parents and addresses in entries.

/// The number of a worker, or of a rack at a root, in tables and as a copy's replication id.
pub fn worker(rank: usize) -> u64 {
    1 + rank as u64
}

/// The number of a parent: the root, or a parameter host.
pub fn parent(number: usize) -> u64 {
    33 + number as u64
}

/// A MAC address as a number.
pub fn mac(bytes: [u8; 6]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
