//! The metrics of a process, under the names that all of Prometheus' client libraries use, and of its log.

use std::fmt;

use rustix::time::{ClockId, clock_gettime};

use crate::catalog::Description;
use crate::group::{Encoder, Group, Metric, Unit};

const PROCESS: Group<Process> = Group {
    labels: &[],
    metrics: &[
        Metric::duration("process_cpu", "CPU time of all threads, in user and in kernel mode", |it| it.cpu),
        Metric::gauge("process_resident_memory", Unit::Bytes, "Resident memory", |it| it.resident),
    ],
};

/// Lines that were not written.
const LOG: Group<u64> = Group {
    labels: &[],
    metrics: &[Metric::counter(
        "sumac_log_lines_dropped",
        Unit::None,
        "Lines of the log that were not written: the reader of standard error had stopped",
        |it| *it,
    )],
};

/// The resources of this process.
struct Process {
    /// Nanoseconds.
    cpu: u64,
    /// Bytes; 0 without /proc.
    resident: f64,
}

impl Process {
    fn own() -> Process {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let nanos = cpu.tv_sec.unsigned_abs() * 1_000_000_000 + cpu.tv_nsec.unsigned_abs();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: Option<f64> =
            resident.and_then(|resident| resident.trim().strip_suffix(" kB")?.trim().parse().ok());
        Process { cpu: nanos, resident: kib.unwrap_or(0.0) * 1024.0 }
    }
}

/// Returns the descriptions.
pub fn describe() -> impl Iterator<Item = Description> {
    PROCESS.describe().chain(LOG.describe())
}

/// Writes the metrics of this process.
pub fn encode(encoder: &mut Encoder<'_>) -> fmt::Result {
    PROCESS.encode(encoder, &[(Vec::new(), Process::own())])?;
    LOG.encode(encoder, &[(Vec::new(), sumac_log::lines_dropped())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_takes_time() {
        let own = Process::own();
        assert!(own.cpu > 0 && own.resident > 1024.0, "{} ns, {} bytes", own.cpu, own.resident);
    }
}
