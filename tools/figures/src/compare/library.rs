//! Other libraries, run in the lab by the scripts in `tools/figures/compare`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::comparison::Measurement;
use super::rank::{self, RankResult};
use anyhow::{Context, Result, ensure};
use sumac_lab::Lab;
use sumac_lab::checkout::script;
use sumac_lab::process::Process;
use sumac_lab::run::RunOptions;
use sumac_lab::trace::Sampler;

/// The Python that Debian's PyTorch and mpi4py are built for.
const PYTHON: &str = "/usr/bin/python3";

/// The scripts' exit code if their library is not installed.
const EXIT_MISSING: i32 = 3;

/// The time for a library to load and to connect its ranks. PyTorch takes seconds, on a busy machine many.
const START_LIMIT: Duration = Duration::from_secs(120);

const DISAGREEMENT: &str = "the ranks tell of different numbers of allreduces";

/// All addresses of the lab.
const SUBNET: &str = "10.77.0.0/16";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Gloo,
    OpenMpi,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub enum Ran {
    /// The library with its version, and its numbers.
    Measured(String, Measurement),
    /// It is not installed.
    Missing,
}

impl Library {
    pub fn name(self) -> &'static str {
        match self {
            Library::Gloo => "Gloo",
            Library::OpenMpi => "Open MPI",
        }
    }

    /// The command that installs it.
    pub fn install(self) -> &'static str {
        match self {
            Library::Gloo => "apt-get install python3-torch",
            Library::OpenMpi => "apt-get install openmpi-bin libopenmpi-dev python3-mpi4py",
        }
    }

    pub fn run(self, lab: &Lab, options: &RunOptions) -> Result<Ran> {
        self.run_in_pieces(lab, options, 1, 1)
    }

    /// Sums a tensor in so many pieces at the same time, of Gloo in so many process groups.
    pub fn run_in_pieces(self, lab: &Lab, options: &RunOptions, pieces: u64, groups: u64) -> Result<Ran> {
        let sampler = options.trace.then(|| Sampler::start(lab));
        let mut processes = match self {
            Library::Gloo => start_gloo(lab, options, pieces, groups),
            Library::OpenMpi => start_open_mpi(lab, options).map(|process| vec![process]),
        }?;
        let limit = START_LIMIT + options.limit * (options.warmup + options.iterations);
        for process in &mut processes {
            let ended = process.wait_success("the end of its sums", limit);
            if process.ended().and_then(|status| status.code()) == Some(EXIT_MISSING) {
                return Ok(Ran::Missing);
            }
            ended?;
        }
        let world = lab.spec().workers * options.operation.ranks_per_host;
        let ranks = (0..world).map(|rank| self.result(lab, rank)).collect::<Result<Vec<_>, _>>()?;
        let spans = rank::spans(&ranks).context(DISAGREEMENT)?;
        let mut measurement = rank::together(&ranks).context(DISAGREEMENT)?;
        if let Some(sampler) = sampler {
            measurement.trace = Some(sampler.finish()?.of_typical(&spans, measurement.tat_s.median));
        }
        let version = ranks.into_iter().next().map_or_else(|| self.name().to_owned(), |first| first.library);
        Ok(Ran::Measured(version, measurement))
    }

    fn result(self, lab: &Lab, rank: u16) -> Result<RankResult> {
        let path = match self {
            Library::Gloo => gloo_output(lab, rank),
            Library::OpenMpi => mpi_output(lab).with_extension(format!("json.{rank}")),
        };
        let read = fs::read_to_string(&path).and_then(|text| Ok(serde_json::from_str(&text)?));
        read.with_context(|| format!("reading the results in {}", path.display()))
    }
}

fn gloo_output(lab: &Lab, rank: u16) -> PathBuf {
    lab.folder().join(format!("gloo{rank}.json"))
}

/// Every rank appends its number.
fn mpi_output(lab: &Lab) -> PathBuf {
    lab.folder().join("mpi.json")
}

fn start_gloo(lab: &Lab, options: &RunOptions, pieces: u64, groups: u64) -> Result<Vec<Process>> {
    let script = script("figures/compare/gloo.py")?;
    let (spec, of_host) = (lab.spec(), options.operation.ranks_per_host);
    let world = spec.workers * of_host;
    let start = |rank: u16| {
        let mut gloo = Command::new(PYTHON);
        gloo.arg(&script).args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
        gloo.args(["--master", &spec.worker_ip(0).to_string(), "--interface", lab.worker_interface()]);
        gloo.args(["--timeout", &(START_LIMIT + options.limit).as_secs().to_string()]);
        gloo.args(["--pieces", &pieces.to_string(), "--groups", &groups.to_string()]);
        gloo.args(sizes(options)).arg("--out").arg(gloo_output(lab, rank));
        lab.start(lab.worker(rank / of_host), &format!("gloo{rank}"), &mut gloo)
    };
    (0..world).map(start).collect()
}

fn start_open_mpi(lab: &Lab, options: &RunOptions) -> Result<Process> {
    ensure!(options.operation.ranks_per_host == 1, "mpi-run starts one rank on each host");
    let spec = lab.spec();
    let mut mpi = Command::new(script("figures/compare/mpi-run")?);
    mpi.args([lab.aggregator().name(), SUBNET]);
    mpi.args((0..spec.workers).map(|rank| format!("{}={}", lab.worker(rank).name(), spec.worker_ip(rank))));
    mpi.arg("--").args(sizes(options)).arg("--out").arg(mpi_output(lab));
    lab.start(lab.aggregator(), "mpi-run", &mut mpi)
}

fn sizes(options: &RunOptions) -> Vec<String> {
    let RunOptions { operation, iterations, warmup, .. } = options;
    let pairs = [
        ("--elements", operation.elements.to_string()),
        ("--iterations", iterations.to_string()),
        ("--warmup", warmup.to_string()),
    ];
    pairs.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
}
