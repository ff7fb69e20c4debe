//! The comparison as a table for people.

use std::fmt;

use sumac_lab::clock::seconds;

use super::comparison::{Comparison, Measurement, Outcome, Row};

const HEAD: [&str; 11] = [
    "library",
    "median s",
    "p99 s",
    "min s",
    "max s",
    "ratio",
    "user s",
    "system s",
    "machine s",
    "verified",
    "path",
];

const LEGEND: &str =
    "from the first worker's start to the last one's sum. CPU seconds are of one allreduce: user and
system of the other libraries' ranks and of Sumac's daemons and aggregator; machine of all CPUs, whose
interrupts run XDP programs, veths and cables.";

/// Columns from here to before the last one are numbers.
const FIRST_NUMBER: usize = 1;

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} workers", self.lab.workers)?;
        if self.ranks_per_host > 1 {
            write!(f, " of {} ranks", self.ranks_per_host)?;
        }
        write!(f, ", {} float32 elements each, ", self.elements)?;
        writeln!(f, "MTU {}, {}", self.lab.mtu, cables(self))?;
        let cells: Vec<_> = self.rows.iter().map(cells).collect();
        let widths: Vec<usize> = (0..HEAD.len() - 1)
            .map(|column| {
                let values = cells.iter().flatten().map(|row| row[column].chars().count());
                // Libraries without numbers have their names in the first column too.
                let names = self.rows.iter().filter(|_| column == 0).map(|row| row.library.len());
                values.chain(names).chain([HEAD[column].len()]).max().unwrap_or(0)
            })
            .collect();
        line(f, &HEAD.map(str::to_owned), &widths)?;
        for (row, cells) in self.rows.iter().zip(&cells) {
            let (library, width) = (&row.library, widths[0]);
            match &row.outcome {
                Outcome::Measured(_) => cells.iter().try_for_each(|cells| line(f, cells, &widths))?,
                Outcome::Missing { install } => writeln!(f, "{library:width$}  not installed: {install}")?,
                Outcome::Failed { error } => writeln!(f, "{library:width$}  FAILED: {error}")?,
            }
        }
        write!(f, "Times of {} allreduces, {LEGEND}", self.iterations)
    }
}

fn cables(comparison: &Comparison) -> String {
    let lab = &comparison.lab;
    let rate = lab.rate.map_or_else(|| "no rate limit".to_owned(), |rate| format!("{rate} each way"));
    let faults = lab.faults;
    let faults = [("loss", faults.loss), ("duplication", faults.duplicate), ("reordering", faults.reorder)];
    let faults = faults.iter().filter(|(_, probability)| !probability.is_zero());
    faults.fold(rate, |text, (name, probability)| format!("{text}, {probability} {name}"))
}

fn cells(row: &Row) -> Option<[String; 11]> {
    let Measurement { tat_s, ratio, cpu_s, machine_cpu_s, verified, .. } = row.outcome.measurement()?;
    Some([
        row.library.clone(),
        seconds(tat_s.median),
        seconds(tat_s.p99),
        seconds(tat_s.min),
        seconds(tat_s.max),
        ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        format!("{:.3}", cpu_s.user),
        format!("{:.3}", cpu_s.system),
        format!("{machine_cpu_s:.3}"),
        if *verified { "yes" } else { "NO" }.to_owned(),
        row.path.clone(),
    ])
}

fn line(f: &mut fmt::Formatter<'_>, cells: &[String; 11], widths: &[usize]) -> fmt::Result {
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        if column < FIRST_NUMBER {
            write!(f, "{cell:width$}  ")?;
        } else {
            write!(f, "{cell:>width$}  ")?;
        }
    }
    // Last, since it is the longest.
    writeln!(f, "{}", cells[HEAD.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::offloads::TcpOffloads;
    use sumac_lab::clock::Times;
    use sumac_lab::cpu::CpuTime;
    use sumac_lab::spec::{Faults, LabSpec};
    use sumac_lab::units::{Probability, Rate};

    fn row(library: &str, median: f64) -> Row {
        let measurement = Measurement {
            tat_s: Times { median, min: median, max: median, p99: median },
            ratio: Some(median),
            cpu_s: CpuTime { user: 0.5, system: 0.25 },
            machine_cpu_s: 1.0,
            verified: library != "Wrong",
            sumac: None,
            trace: None,
            times_s: Vec::new(),
            peak_kib: 0,
        };
        Row { library: library.into(), path: "TCP".into(), outcome: Outcome::Measured(measurement) }
    }

    fn comparison() -> Comparison {
        let faults = Faults { loss: Probability(10_000), ..Faults::default() };
        let lab = LabSpec { rate: Some(Rate(100_000_000)), faults, ..LabSpec::new(4) };
        let missing = Outcome::Missing { install: "apt-get install x" };
        let failed = Outcome::Failed { error: "it broke".into() };
        let rows = vec![
            row("Sumac XDP", 1.0),
            row("Wrong", 12.5),
            Row { library: "Gloo".into(), path: "-".into(), outcome: missing },
            Row { library: "Open MPI".into(), path: "-".into(), outcome: failed },
        ];
        Comparison {
            lab,
            ranks_per_host: 1,
            elements: 1000,
            iterations: 5,
            tcp_offloads: TcpOffloads::Gro,
            rows,
        }
    }

    #[test]
    fn every_library_has_its_line() {
        let text = comparison().to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "4 workers, 1000 float32 elements each, MTU 1500, 100mbit each way, 1% loss");
        assert_eq!(lines[1].find("verified"), lines[2].find("     yes"), "{text}");
        assert!(lines[3].starts_with("Wrong       12.5000") && lines[3].ends_with("NO  TCP"), "{text}");
        assert_eq!(lines[4], "Gloo       not installed: apt-get install x");
        assert_eq!(lines[5], "Open MPI   FAILED: it broke");
    }

    #[test]
    fn wrong_sums_and_failures_are_not_right_but_missing_packages_are() {
        let mut comparison = comparison();
        assert!(!comparison.is_right());
        comparison.rows.remove(3);
        assert!(!comparison.is_right());
        comparison.rows.remove(1);
        assert!(comparison.is_right());
    }

    #[test]
    fn rows_tell_their_outcome_in_json() {
        let json = serde_json::to_value(comparison()).unwrap();
        let outcomes: Vec<_> =
            (0..4).map(|row| json["rows"][row]["outcome"].as_str().unwrap().to_owned()).collect();
        assert_eq!(outcomes, ["measured", "measured", "missing", "failed"]);
        assert_eq!(json["rows"][0]["tat_s"]["median"], 1.0);
    }
}
