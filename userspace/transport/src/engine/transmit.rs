//! What the engine hands out to be sent.

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the job's aggregator.
    Aggregator,
    /// Straight to the parameter host of the lane's shard (dynamic jobs).
    ParameterHost,
}

/// A UDP payload that was written, and how it wants to travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes written: header and elements.
    pub len: usize,
    /// Whose address it goes to.
    pub to: Destination,
    /// Goes to the job's base port plus this: the lane's shard.
    pub port_offset: u16,
    /// Varies from packet to packet; spread over source ports it makes ECMP use all paths.
    pub entropy: u16,
    /// IPv4's DSCP and ECN byte: the class selector of the operation's priority; ECT(0) in dynamic jobs, else not
    /// ECN-capable.
    pub dscp_ecn: u8,
}

/// Spreads consecutive numbers over 16 bits (Fibonacci hashing).
pub(crate) fn entropy(index: u64) -> u16 {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}
