//! The paths of an aggregator's results to one worker (MLT section 4.2.1). A path is a UDP source port, as
//! for a worker's own packets.
//!
//! A chunk's number names the path of its result, so the aggregator remembers nothing of what it sent. The
//! worker probes its paths, and names those to avoid (`userspace/transport/src/result_paths.rs`).

use crate::Header;

/// Most paths of the results to one worker.
pub const RESULT_PATHS: usize = 16;
/// Chunks that follow each other and name the same path: their results may leave as one run.
const RUN: u32 = 8;
/// The candidates for an answer.
const CANDIDATES: u32 = 8;

/// Marks the numbers of probes that name paths to avoid; the rest is the path of the answer.
pub const SURVEY: u32 = 1 << 29;

/// The paths that the results for a probe's sender are to avoid, a bit each; `None`: the probe is for another
/// purpose.
#[inline(always)]
pub const fn avoided(probe: &Header) -> Option<u16> {
    if probe.seq & SURVEY != 0 { Some(probe.tensor as u16) } else { None }
}

/// The path of a probe's answer.
#[inline(always)]
pub const fn of_report(probe: &Header, count: u16) -> u16 {
    if probe.offset < count as u32 { probe.offset as u16 } else { 0 }
}

/// A probe that is answered by this path, with the paths to avoid where it has such a number.
#[must_use]
pub const fn probe(header: Header, path: u16, avoided: u16) -> Header {
    Header { tensor: avoided as u32, offset: path as u32, ..header }
}

//= mlt#4.2.1 load balancing packet by packet
/// The path of the result of chunk `seq`, of `count` paths (1 to [`RESULT_PATHS`]).
#[inline(always)]
pub const fn of_result(avoided: u16, count: u16, seq: u32) -> u16 {
    let own = within(seq / RUN, count);
    if is_avoided(avoided, own) { of_reply(avoided, count, seq) } else { own }
}

/// The path of an answer to one worker. `key`: another one at each attempt.
#[inline(always)]
pub const fn of_reply(avoided: u16, count: u16, key: u32) -> u16 {
    let mut candidate = 1;
    while candidate < CANDIDATES {
        let path = within(mixed(key, candidate), count);
        if !is_avoided(avoided, path) {
            return path;
        }
        candidate += 1;
    }
    within(key, count)
}

#[inline(always)]
const fn is_avoided(avoided: u16, path: u16) -> bool {
    avoided as u32 >> (path & 15) & 1 != 0
}

#[inline(always)]
const fn within(number: u32, count: u16) -> u16 {
    (number % if count == 0 { 1 } else { count as u32 }) as u16
}

/// A random number from a key (the finalizer of MurmurHash3).
#[inline(always)]
const fn mixed(key: u32, candidate: u32) -> u32 {
    let mut bits = key.wrapping_add(candidate << 24);
    bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ bits >> 13).wrapping_mul(0xc2b2_ae35);
    bits ^ bits >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u16 = RESULT_PATHS as u16;

    fn shares(avoided: u16, path: impl Fn(u16, u32) -> u16) -> [u32; RESULT_PATHS] {
        let mut shares = [0; RESULT_PATHS];
        (0..12_800).for_each(|seq| shares[usize::from(path(avoided, seq))] += 1);
        shares
    }

    #[test]
    fn results_take_all_paths_alike_and_no_avoided_one() {
        let of_result = |avoided, seq| of_result(avoided, COUNT, seq);
        assert_eq!(shares(0, of_result), [800; RESULT_PATHS]);
        let one_less = shares(1 << 3, of_result);
        assert_eq!(one_less[3], 0);
        assert!(one_less.iter().filter(|share| **share > 0).all(|share| (820..900).contains(share)));
        let half = shares(0x00ff, of_result);
        assert!(
            half[..8].iter().sum::<u32>() < 100 && half[8..].iter().all(|share| *share > 1400),
            "{half:?}"
        );
        assert_eq!([0, 1, 7, 8].map(|seq| of_result(0, seq)), [0, 0, 0, 1], "eight in a row");
    }

    #[test]
    fn replies_take_another_path_each_time() {
        let half = shares(0xaaaa, |avoided, key| of_reply(avoided, COUNT, key));
        assert!(half.iter().skip(1).step_by(2).sum::<u32>() < 100, "{half:?}");
        assert!(half.iter().step_by(2).all(|share| *share > 1400), "{half:?}");
        assert_eq!(of_reply(0xffff, COUNT, 5), 5, "where none works, in turn");
    }

    #[test]
    fn a_few_paths_or_none() {
        assert!((0..1000).all(|seq| of_result(0, 3, seq) < 3 && of_reply(0b101, 3, seq) < 3));
        assert!([0, 1].iter().all(|count| of_result(1, *count, 77) == 0 && of_reply(0, *count, 77) == 0));
        let asked = probe(Header { seq: SURVEY | 9, ..Header::default() }, 9, 0x8001);
        assert_eq!((avoided(&asked), of_report(&asked, 16), of_report(&asked, 9)), (Some(0x8001), 9, 0));
        assert_eq!(avoided(&Header { seq: 9, ..asked }), None);
    }
}
