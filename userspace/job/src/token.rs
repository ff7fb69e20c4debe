//! The tokens in a job's packets. Contributions and probes carry the one that the control plane drew; results
//! and reports another, made from it.

use sha2::{Digest as _, Sha256};

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

#[cfg(test)]
mod tests {
    use super::*;

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
