//! The report of a run: a row for each kind of process.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use sumac_client::Mode;

use super::options::ChaosOptions;
use super::trainers::Trainers;
use super::victim::{Kind, Victim};
use crate::clock::{Times, monotonic};

/// The effect of a kill on the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The job went on.
    PassedOver,
    /// The job failed on every worker, and each error named the process.
    Named,
    /// An error did not.
    Unnamed,
    /// An operation did not end within the limit, or the job did not recover.
    Hung,
}

/// One kill.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kill {
    pub victim: Victim,
    pub outcome: Outcome,
    /// Seconds from the kill to the last worker's error; of a job that went on, the longest of a worker
    /// without a sum.
    pub seconds: f64,
    /// Seconds from the restart to steady sums of all workers.
    pub recovery: f64,
    /// An error that does not name the process, or the first that does.
    pub message: String,
}

impl Kill {
    pub(super) fn new(
        victim: Victim,
        since: f64,
        settled: bool,
        recovered: bool,
        gap: f64,
        restarted_at: f64,
        trainers: &Trainers,
    ) -> Kill {
        let recovery = monotonic() - restarted_at;
        let faults: Vec<_> = trainers.faults().collect();
        let unnamed =
            faults.iter().find(|(rank, fault)| !victim.is_named(*rank, &fault.ranks, &fault.message));
        let told = unnamed.or(faults.first()).map(|(rank, fault)| format!("rank {rank}: {}", fault.message));
        let outcome = match () {
            () if !settled || !recovered => Outcome::Hung,
            () if unnamed.is_some() => Outcome::Unnamed,
            () if faults.is_empty() => Outcome::PassedOver,
            () => Outcome::Named,
        };
        let named = faults.iter().map(|(_, fault)| fault.at - since).fold(0.0, f64::max);
        let seconds = if faults.is_empty() { gap } else { named };
        let message = if outcome == Outcome::Hung { trainers.describe() } else { told.unwrap_or_default() };
        Kill { victim, outcome, seconds, recovery, message }
    }
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kill { victim, outcome, seconds, recovery, message } = self;
        write!(f, "{victim}: {outcome:?} after {seconds:.2} s, sums again after {recovery:.2} s")?;
        if message.is_empty() { Ok(()) } else { write!(f, "; {message}") }
    }
}

/// The kills of one kind of process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub kind: Kind,
    pub kills: usize,
    pub passed_over: usize,
    pub named: usize,
    pub unnamed: usize,
    pub hung: usize,
    /// Seconds from a kill to the last worker's error, of those that failed the job.
    pub to_name_s: Times,
    /// Seconds from a kill to the last worker's next sum, of those that did not.
    pub gap_s: Times,
    /// Seconds from a restart to steady sums.
    pub recovery_s: Times,
}

/// The report of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub mode: Mode,
    pub seed: u64,
    /// Sums of all workers, each compared with the reference.
    pub sums: u64,
    pub wrong: u64,
    /// Calls to connect and to open the job that failed while a process was away, by message.
    pub refused: BTreeMap<String, u64>,
    pub rows: Vec<Row>,
    /// Slots, jobs, connections, shared memory, frames, processes, namespaces, programs and files that are
    /// left.
    pub leftovers: Vec<String>,
    pub kills: Vec<Kill>,
}

impl Report {
    pub(super) fn new(options: &ChaosOptions) -> Report {
        Report {
            mode: options.mode,
            seed: options.seed,
            sums: 0,
            wrong: 0,
            refused: BTreeMap::new(),
            rows: Vec::new(),
            leftovers: Vec::new(),
            kills: Vec::new(),
        }
    }

    /// Fills the rows from the kills.
    pub(super) fn finish(mut self) -> Report {
        let mut kinds: BTreeMap<Kind, Vec<&Kill>> = BTreeMap::new();
        for kill in &self.kills {
            kinds.entry(kill.victim.kind).or_default().push(kill);
        }
        self.rows = kinds.into_iter().map(|(kind, kills)| Row::of(kind, &kills)).collect();
        self
    }

    /// Whether every sum was right, every failure named, nothing hung and nothing is left.
    pub fn is_good(&self) -> bool {
        let is_good = |kill: &Kill| matches!(kill.outcome, Outcome::PassedOver | Outcome::Named);
        self.wrong == 0 && self.leftovers.is_empty() && self.kills.iter().all(is_good)
    }
}

impl Row {
    fn of(kind: Kind, kills: &[&Kill]) -> Row {
        let count = |outcome| kills.iter().filter(|kill| kill.outcome == outcome).count();
        let seconds = |outcome| {
            let of_outcome = kills.iter().filter(|kill| kill.outcome == outcome);
            Times::of(&of_outcome.map(|kill| kill.seconds).collect::<Vec<_>>())
        };
        Row {
            kind,
            kills: kills.len(),
            passed_over: count(Outcome::PassedOver),
            named: count(Outcome::Named),
            unnamed: count(Outcome::Unnamed),
            hung: count(Outcome::Hung),
            to_name_s: seconds(Outcome::Named),
            gap_s: seconds(Outcome::PassedOver),
            recovery_s: Times::of(&kills.iter().map(|kill| kill.recovery).collect::<Vec<_>>()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seed, sums, wrong, .. } = self;
        writeln!(f, "{} jobs, seed {seed}, {} kills", self.mode.name(), self.kills.len())?;
        writeln!(
            f,
            "{:24} {:>5} {:>11} {:>5} {:>7} {:>4}  {:>18} {:>18}",
            "killed", "kills", "passed over", "named", "unnamed", "hung", "to name p50 max", "gap p50 max"
        )?;
        for row in &self.rows {
            let times = |times: Times| format!("{:.2} s {:.2} s", times.median, times.max);
            let (named, gap) = (times(row.to_name_s), times(row.gap_s));
            let Row { kills, passed_over, named: count, unnamed, hung, .. } = row;
            let kind = row.kind.name();
            writeln!(
                f,
                "{kind:24} {kills:>5} {passed_over:>11} {count:>5} {unnamed:>7} {hung:>4}  {named:>18} \
                {gap:>18}"
            )?;
        }
        writeln!(f, "{sums} sums, {wrong} wrong")?;
        for (message, count) in &self.refused {
            writeln!(f, "{count:>6} x refused: {message}")?;
        }
        if self.leftovers.is_empty() {
            return write!(f, "nothing is left, and all frames are accounted for");
        }
        write!(f, "left: {}", self.leftovers.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(outcome: Outcome, seconds: f64) -> Kill {
        let victim = Victim { kind: Kind::Daemon, number: 1 };
        Kill { victim, outcome, seconds, recovery: 1.0, message: String::new() }
    }

    fn report(kills: Vec<Kill>) -> Report {
        let (mode, seed, sums, wrong, refused) = (Mode::Static, 1, 5, 0, BTreeMap::new());
        Report { mode, seed, sums, wrong, refused, rows: Vec::new(), leftovers: Vec::new(), kills }.finish()
    }

    #[test]
    fn a_row_counts_the_kills_of_a_kind() {
        let good = report(vec![
            kill(Outcome::Named, 2.0),
            kill(Outcome::Named, 1.0),
            kill(Outcome::PassedOver, 0.1),
        ]);
        let row = &good.rows[0];
        assert_eq!((row.kills, row.named, row.passed_over), (3, 2, 1));
        assert_eq!((row.to_name_s.max, row.gap_s.max), (2.0, 0.1));
        assert!(good.is_good());
    }

    #[test]
    fn one_fault_makes_a_run_bad() {
        for outcome in [Outcome::Unnamed, Outcome::Hung] {
            assert!(!report(vec![kill(outcome, 1.0)]).is_good());
        }
        let good = report(vec![kill(Outcome::Named, 1.0)]);
        assert!(!Report { wrong: 1, ..good.clone() }.is_good());
        assert!(!Report { leftovers: vec!["a pin".into()], ..good }.is_good());
    }
}
