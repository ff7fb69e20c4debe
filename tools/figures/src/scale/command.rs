//! `sumac-figures scale`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, value_parser};
use sumac_lab::capture::CaptureOptions;
use sumac_lab::deployment::{Backend, Deployment, SumacOptions};
use sumac_lab::run::{Operation, RunOptions};
use sumac_lab::spec::Topology;
use sumac_lab::{Lab, LabSpec, interrupt};

use super::load::{self, Cost};
use super::report::{CostRow, GlooCost, ScaleAxis, ScaleReport};
use crate::compare::library::{Library, Ran};

const EXAMPLES: &str = "\
Examples:
  sumac-figures scale
  sumac-figures scale --workers 2,4 --elements 1,1000000 --jobs 1,10 --operations 1,1000 --json
  sumac-figures scale --elements 1000000000 --workers 2 --jobs 1 --operations 1      8 GB of tensors

Over UDP, with a host aggregator, on the loopback interface; jobs in a lab of network namespaces, since one
host may hold a half of the aggregator's job numbers and slots. A size that does not fit is refused by the
daemon or the aggregator with the reason. Gloo needs Debian's python3-torch; without it, and above a quarter
of the memory, its columns are empty.
Exit codes: 0 all sums right, 1 wrong or failed, 2 wrong usage, 130 interrupted.";

/// Elements of a sum where something else grows.
const ELEMENTS: u64 = 1_000_000;
const JOB_ELEMENTS: u64 = 1024;
/// Slots of a lane of many jobs, which share the aggregator's pool of 4,096: 1,000 jobs with 2 lanes each.
const JOB_SLOTS: u32 = 2;
/// MiB that a daemon reserves for the trainer and the job of one user, who has a half of all.
const JOB_MIB: u64 = 2 * (4 + 2 + 1);
/// The default where there is little memory.
const LEAST_BUFFERS_MIB: u64 = 512;
/// Open files of a job's two trainers.
const JOB_FILES: u64 = 12;
/// Open files of the lab itself.
const OWN_FILES: u64 = 100;
/// The same of the jobs of operations in flight: one host may have a half of the pool.
const FLIGHT_SLOTS: u32 = 32;
/// Bytes of a rank of Gloo for each element: its values, the sum, and the expected one.
const GLOO_BYTES: u64 = 12;
/// More sums in flight of Gloo, each of which takes a third of a millisecond, are measured once.
const MANY: u64 = 10_000;
/// Bytes of a rank of Gloo besides.
const PYTORCH_BYTES: u64 = 250 << 20;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Scale {
    /// Numbers of workers, 2 to 32, which sum 1,000,000 elements
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16,32",
        value_parser = value_parser!(u16).range(2..=32))]
    workers: Vec<u16>,
    /// Numbers of elements that two workers sum
    #[arg(long, value_delimiter = ',', default_value = "1,1000,1000000,10000000,100000000",
        value_parser = value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    elements: Vec<u64>,
    /// Numbers of jobs of two workers with a sum of 1,024 elements each in flight at once
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000",
        value_parser = value_parser!(u64).range(1..=1000))]
    jobs: Vec<u64>,
    /// Numbers of operations of 16 elements that worker 0 has in flight before worker 1 begins
    #[arg(long, value_delimiter = ',', default_value = "1,100,1000,10000,100000",
        value_parser = value_parser!(u64).range(1..=100_000))]
    operations: Vec<u64>,
    /// Leave Gloo out
    #[arg(long)]
    no_gloo: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Scale {
    pub fn run(self) -> Result<ExitCode> {
        let size = |size: &u64| (*size, 2);
        let workers =
            self.workers.iter().map(|workers| (ScaleAxis::Workers, (u64::from(*workers), *workers)));
        let elements = self.elements.iter().map(|it| (ScaleAxis::Elements, size(it)));
        let jobs = self.jobs.iter().map(|it| (ScaleAxis::Jobs, size(it)));
        let operations = self.operations.iter().map(|it| (ScaleAxis::Operations, size(it)));
        let (mut rows, mut failed) = (Vec::new(), false);
        for (axis, (size, workers)) in workers.chain(elements).chain(jobs).chain(operations) {
            interrupt::check()?;
            match self.row(axis, size, workers) {
                Ok(row) => rows.push(row),
                Err(error) => {
                    eprintln!("scale: {size} {}: {error:#}", axis.name());
                    failed = true;
                }
            }
        }
        interrupt::check()?;
        let report = ScaleReport::new(rows);
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        Ok(if report.verified && !failed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn row(&self, axis: ScaleAxis, size: u64, workers: u16) -> Result<CostRow> {
        eprintln!("scale: {size} {}", axis.name());
        if axis == ScaleAxis::Jobs {
            let (wanted, most) = (OWN_FILES + size * JOB_FILES, sumac_sandbox::raise_open_files());
            ensure!(
                wanted <= most,
                "the trainers need {wanted} open files, and this process may have {most} more: raise the \
                limit (ulimit -Hn {wanted})"
            );
        }
        let elements = match axis {
            ScaleAxis::Workers => ELEMENTS,
            ScaleAxis::Elements => size,
            ScaleAxis::Jobs => JOB_ELEMENTS,
            ScaleAxis::Operations => load::SMALL as u64,
        };
        let topology = if axis == ScaleAxis::Jobs { Topology::PerPort } else { Topology::Loopback };
        let lab = Lab::up(LabSpec { topology, ..LabSpec::new(workers) })?;
        let slots = match axis {
            ScaleAxis::Workers | ScaleAxis::Elements => None,
            ScaleAxis::Jobs => Some(JOB_SLOTS),
            ScaleAxis::Operations => Some(FLIGHT_SLOTS),
        };
        let buffers_mib = (axis == ScaleAxis::Jobs).then(|| (size * JOB_MIB).max(LEAST_BUFFERS_MIB));
        let sumac = SumacOptions { backend: Backend::Udp, slots, buffers_mib, ..SumacOptions::default() };
        let deployment = Deployment::start(&lab, &sumac)?;
        let count = usize::try_from(elements)?;
        let cost = match axis {
            ScaleAxis::Workers | ScaleAxis::Elements => load::sum(&deployment, count),
            ScaleAxis::Jobs => load::jobs(&deployment, usize::try_from(size)?, count),
            ScaleAxis::Operations => load::operations(&deployment, usize::try_from(size)?),
        };
        drop(deployment);
        let Cost { seconds, daemon_cpu_s, aggregator_cpu_s, daemon_kib, aggregator_kib, verified } = cost?;
        let (mut gloo, mut is_right) = (None, verified);
        if !self.no_gloo && gloo_bytes(axis, size, workers, elements) < memory() / 4 {
            let pieces = if matches!(axis, ScaleAxis::Jobs | ScaleAxis::Operations) { size } else { 1 };
            let groups = if axis == ScaleAxis::Jobs { size } else { 1 };
            (gloo, is_right) = beside(&lab, &sumac, count * usize::try_from(pieces)?, [pieces, groups])?;
            is_right &= verified;
        }
        lab.down()?;
        Ok(CostRow {
            axis,
            size,
            workers,
            elements,
            seconds,
            daemon_cpu_s,
            aggregator_cpu_s,
            daemon_kib,
            aggregator_kib,
            gloo,
            verified: is_right,
        })
    }
}

/// Runs Gloo in the same lab. `pieces`: the sums in flight at the same time, and the process groups that they
/// are of.
fn beside(
    lab: &Lab,
    sumac: &SumacOptions,
    elements: usize,
    [pieces, groups]: [u64; 2],
) -> Result<(Option<GlooCost>, bool)> {
    let options = RunOptions {
        lab: lab.spec().clone(),
        sumac: sumac.clone(),
        operation: Operation::sum(elements),
        jobs: 1,
        iterations: if pieces > MANY { 1 } else { 5 },
        warmup: 1,
        seed: 1,
        limit: Duration::from_secs(300),
        trace: false,
        captures: CaptureOptions::default(),
    };
    Ok(match Library::Gloo.run_in_pieces(lab, &options, pieces, groups)? {
        Ran::Missing => (None, true),
        Ran::Measured(_, measured) => {
            let cpu_s = (measured.cpu_s.user + measured.cpu_s.system) / f64::from(lab.spec().workers);
            let gloo = GlooCost { seconds: measured.tat_s.median, cpu_s, peak_kib: measured.peak_kib };
            (Some(gloo), measured.verified)
        }
    })
}

fn gloo_bytes(axis: ScaleAxis, size: u64, workers: u16, elements: u64) -> u64 {
    let pieces = if matches!(axis, ScaleAxis::Jobs | ScaleAxis::Operations) { size } else { 1 };
    let own = elements.saturating_mul(pieces).saturating_mul(GLOO_BYTES);
    // The libraries' pages are shared.
    own.saturating_add(PYTORCH_BYTES / 2).saturating_mul(u64::from(workers))
}

/// Returns the machine's memory in bytes.
fn memory() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};

    let number = |variable| sysconf(variable).ok().flatten().and_then(|number| u64::try_from(number).ok());
    let (pages, size) = (number(SysconfVar::_PHYS_PAGES), number(SysconfVar::PAGE_SIZE));
    pages.zip(size).map_or(0, |(pages, size)| pages.saturating_mul(size))
}
