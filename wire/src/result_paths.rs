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
/// Marks the numbers of probes that name paths to avoid; the rest is the number of the survey and the path of
/// the answer.
pub const SURVEY: u32 = 1 << 29;
/// Bits of a path.
const PATH_BITS: u32 = 4;
/// A probe is old if a survey that is at most so many later has been seen. So many take almost a second,
/// which no packet is late by. A worker that counts anew, or whose probes were lost for long, waits for no
/// more surveys than these.
const OLD: u8 = 16;
/// Marks an aggregator's record of a survey. Bits 16 to 23 are its number, bits 0 to 15 the paths to avoid.
const IS_SURVEYED: u32 = 1 << 24;

/// The number of a survey's probe that is answered by this path.
#[must_use]
pub const fn number(survey: u8, path: u16) -> u32 {
    SURVEY | (survey as u32) << PATH_BITS | path as u32 & 15
}

/// Whether an answer is one to a probe of a survey.
#[must_use]
pub const fn is_of_survey(report: &Header) -> bool {
    report.seq & SURVEY != 0
}

/// The path of an answer to a probe of this survey; `None`: it answers another one.
#[must_use]
pub const fn answered(report: &Header, survey: u8) -> Option<u16> {
    let is_own = report.seq >> PATH_BITS == number(survey, 0) >> PATH_BITS;
    if is_own { Some(report.seq as u16 & 15) } else { None }
}

/// Of the `count` paths to a probe's sender those that its results are to avoid, a bit each; `None`: the
/// probe is for another purpose, or there is one path.
#[inline(always)]
pub const fn avoided(probe: &Header, count: u16) -> Option<u16> {
    if is_of_survey(probe) && count > 1 { Some(probe.tensor as u16 & all(count)) } else { None }
}

/// Returns the record of a worker's last survey after this probe, of `count` paths to its sender. Records
/// begin as 0. A probe of an older survey changes nothing: what it names is out of date.
#[inline(always)]
#[must_use]
pub const fn recorded(record: u32, probe: &Header, count: u16) -> u32 {
    let survey = (probe.seq >> PATH_BITS) as u8;
    let later_by = ((record >> 16) as u8).wrapping_sub(survey);
    let is_old = record & IS_SURVEYED != 0 && later_by != 0 && later_by <= OLD;
    match avoided(probe, count) {
        Some(avoided) if !is_old => IS_SURVEYED | (survey as u32) << 16 | avoided as u32,
        _ => record,
    }
}

/// The paths that the last survey named, of its record.
#[inline(always)]
#[must_use]
pub const fn of_record(record: u32) -> u16 {
    record as u16
}

/// All paths, a bit each.
#[inline(always)]
#[must_use]
pub const fn all(count: u16) -> u16 {
    ((1u32 << (count & 31)) - 1) as u16
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
    let usable = all(count) & !avoided;
    if usable == 0 {
        return within(key, count);
    }
    let mut before = mixed(key) % usable.count_ones();
    let mut path = 0;
    while path < RESULT_PATHS as u16 {
        if usable >> path & 1 != 0 {
            if before == 0 {
                return path;
            }
            before -= 1;
        }
        path += 1;
    }
    0
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
const fn mixed(key: u32) -> u32 {
    let mut bits = (key ^ key >> 16).wrapping_mul(0x85eb_ca6b);
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
        for avoided in [0x00ff, 0x0fff, 0x7fff, 0xfffe, 0xa5a5] {
            let used = shares(avoided, of_result);
            let even = 12_800 / u16::count_zeros(avoided);
            for (path, share) in used.into_iter().enumerate() {
                let is_avoided = avoided >> path & 1 != 0;
                assert!(if is_avoided { share == 0 } else { share.abs_diff(even) < even / 8 }, "{used:?}");
            }
        }
        assert_eq!([0, 1, 7, 8].map(|seq| of_result(0, seq)), [0, 0, 0, 1], "eight in a row");
    }

    #[test]
    fn replies_take_another_path_each_time() {
        let half = shares(0xaaaa, |avoided, key| of_reply(avoided, COUNT, key));
        assert!(half.iter().skip(1).step_by(2).all(|share| *share == 0), "{half:?}");
        assert!(half.iter().step_by(2).all(|share| *share > 1400), "{half:?}");
        assert_eq!(of_reply(0xffff, COUNT, 5), 5, "where none works, in turn");
    }

    #[test]
    fn a_few_paths_or_none() {
        assert!((0..1000).all(|seq| of_result(0, 3, seq) < 3 && of_reply(0b101, 3, seq) < 3));
        assert!([0, 1].iter().all(|count| of_result(1, *count, 77) == 0 && of_reply(0, *count, 77) == 0));
        let asked = probe(Header { seq: number(200, 9), ..Header::default() }, 9, 0x8001);
        assert_eq!((avoided(&asked, 16), of_report(&asked, 16), of_report(&asked, 9)), (Some(0x8001), 9, 0));
        assert_eq!([0, 1, 3].map(|count| avoided(&asked, count)), [None, None, Some(1)]);
        assert_eq!([200, 199].map(|survey| answered(&asked, survey)), [Some(9), None]);
        let other = Header { seq: 9, ..asked };
        assert_eq!((avoided(&other, 16), is_of_survey(&other)), (None, false));
    }

    /// Also where the numbers wrap. Probes of a worker that counts anew count after a few surveys.
    #[test]
    fn a_probe_of_an_older_survey_changes_nothing() {
        let after = |record, survey, paths| {
            let header = Header { seq: number(survey, 3), ..Header::default() };
            recorded(record, &probe(header, 3, paths), COUNT)
        };
        for survey in 0..=u8::MAX {
            let record = after(0, survey, 0x0ff0);
            assert_eq!(of_record(record), 0x0ff0, "the first that is seen, {survey}");
            for before in 1..=OLD {
                let earlier = survey.wrapping_sub(before);
                assert_eq!(after(record, earlier, 1), record, "{survey}, {earlier} late");
                let missed = survey.wrapping_add(before);
                assert_eq!(of_record(after(record, missed, 1)), 1, "{survey}, {missed}");
            }
            assert_eq!(of_record(after(record, survey, 2)), 2);
            let taken = (1..=u8::MAX).position(|anew| of_record(after(record, anew, 4)) == 4);
            assert!(taken.is_some_and(|surveys| surveys <= OLD.into()), "{survey}: {taken:?}");
        }
        let of_check = probe(Header { seq: 9, ..Header::default() }, 3, 1);
        assert_eq!(recorded(after(0, 7, 2), &of_check, COUNT), after(0, 7, 2));
        assert_eq!(recorded(0, &Header { seq: SURVEY, tensor: 1, ..Header::default() }, 1), 0, "one path");
    }
}
