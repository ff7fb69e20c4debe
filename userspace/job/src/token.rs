//! The tokens in a job's packets. Contributions and probes carry the one that the control plane drew; results
//! and reports another, made from it.

use sha2::{Digest as _, Sha256};
use sumac_wire::Header;

/// Keeps the digest apart from those of other uses.
const LABEL: &[u8] = b"sumac result token";

/// Returns the token in a job's results and reports: the first 8 bytes of SHA-256 over a label and the job's
/// token.
///
/// A network that floods multicast shows a result to everybody. The result does not tell them the token of
/// contributions.
#[must_use]
pub fn result_token(token: u64) -> u64 {
    let digest = Sha256::new_with_prefix(LABEL).chain_update(token.to_be_bytes()).finalize();
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The fields by which a host finds a packet's job.
///
/// Each control plane numbers its jobs from 1, so two of them assign the same numbers. Addresses do not tell
/// their jobs apart: two aggregators may share a machine, and packets of direct jobs come from workers. The
/// token does: it is random for each job, and in every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketKey {
    pub number: u16,
    pub token: u64,
    result_token: u64,
}

impl PacketKey {
    #[must_use]
    pub fn new(number: u16, token: u64) -> PacketKey {
        PacketKey { number, token, result_token: result_token(token) }
    }

    /// Returns whether a packet is of this job, in either direction.
    #[must_use]
    pub fn is_of(&self, header: &Header) -> bool {
        header.job == self.number && [self.token, self.result_token].contains(&header.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_number_differ_by_their_tokens() {
        let (one, other) = (PacketKey::new(1, 7), PacketKey::new(1, 8));
        for token in [7, result_token(7)] {
            let header = Header { job: 1, token, ..Header::default() };
            assert!(one.is_of(&header) && !other.is_of(&header));
            assert!(!one.is_of(&Header { job: 2, ..header }));
        }
    }

    #[test]
    fn a_result_has_another_token_than_a_contribution() {
        let tokens: Vec<u64> = (0..64).map(|bit| result_token(1 << bit)).collect();
        for (bit, token) in tokens.iter().enumerate() {
            assert_ne!(*token, 1 << bit);
            assert!(!tokens[..bit].contains(token));
        }
        // `printf 'sumac result token\0\0\0\0\0\0\x5e\xed' | sha256sum`
        assert_eq!(result_token(0x5eed), 0xdfff_eaa4_0062_542c);
    }
}
