//! The output of one rank of another library: a line of JSON from `tools/figures/compare/measure.py`.

use serde::Deserialize;

use super::comparison::Measurement;
use sumac_lab::clock::{Span, Times, around};
use sumac_lab::cpu::CpuTime;
use sumac_lab::cpu::MachineTime;

#[derive(Clone, Debug, Deserialize)]
pub struct RankResult {
    /// The library with its version.
    pub library: String,
    /// Begin and end of each measured allreduce, by the clock that all processes of the machine share.
    spans_s: Vec<Span>,
    /// Of this process, over all measured allreduces.
    cpu_s: CpuTime,
    /// Of the whole machine meanwhile.
    machine_s: MachineTime,
    verified: bool,
    /// The most memory of this process.
    #[serde(default)]
    peak_kib: u32,
}

/// From the first rank's start to the last one's sum, for each allreduce; none when the ranks tell of no
/// allreduce or of different numbers of them.
pub fn spans(ranks: &[RankResult]) -> Option<Vec<Span>> {
    let count = ranks.first()?.spans_s.len();
    if count == 0 || ranks.iter().any(|rank| rank.spans_s.len() != count) {
        return None;
    }
    let of = |iteration: usize| ranks.iter().map(|rank| rank.spans_s[iteration]).collect::<Vec<_>>();
    Some((0..count).map(|iteration| around(&of(iteration))).collect())
}

/// Puts the ranks' accounts together; none as in [`spans`].
pub fn together(ranks: &[RankResult]) -> Option<Measurement> {
    let (first, spans) = (ranks.first()?, spans(ranks)?);
    let each = 1.0 / spans.len() as f64;
    let cpu = ranks.iter().fold(CpuTime::default(), |sum, rank| sum + rank.cpu_s);
    Some(Measurement {
        tat_s: Times::of_spans(&spans),
        ratio: None,
        cpu_s: CpuTime { user: cpu.user * each, system: cpu.system * each },
        machine_cpu_s: first.machine_s.total() * each,
        verified: ranks.iter().all(|rank| rank.verified),
        sumac: None,
        trace: None,
        times_s: spans.iter().map(|(begin, end)| end - begin).collect(),
        peak_kib: ranks.iter().map(|rank| rank.peak_kib).max().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(spans: &[(f64, f64)], verified: bool) -> RankResult {
        let json = serde_json::json!({
            "library": "x 1", "rank": 0, "spans_s": spans, "verified": verified,
            "cpu_s": {"user": 1.0, "system": 2.0}, "machine_s": {"user": 4.0, "system": 3.0, "softirq": 1.0},
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn from_the_first_start_to_the_last_end() {
        let ranks = [rank(&[(10.0, 11.0), (20.0, 24.0)], true), rank(&[(10.5, 12.0), (19.0, 21.0)], true)];
        let together = together(&ranks).unwrap();
        assert_eq!((together.tat_s.min, together.tat_s.max), (2.0, 5.0));
        assert_eq!(together.cpu_s, CpuTime { user: 1.0, system: 2.0 });
        assert_eq!(together.machine_cpu_s, 4.0);
        assert!(together.verified);
    }

    #[test]
    fn one_wrong_rank_spoils_it() {
        let ranks = [rank(&[(0.0, 1.0)], true), rank(&[(0.0, 1.0)], false)];
        assert!(!together(&ranks).unwrap().verified);
    }

    #[test]
    fn ranks_must_have_done_the_same() {
        assert_eq!(together(&[]), None);
        assert_eq!(together(&[rank(&[], true)]), None);
        assert_eq!(together(&[rank(&[(0.0, 1.0)], true), rank(&[(0.0, 1.0), (1.0, 2.0)], true)]), None);
    }
}
