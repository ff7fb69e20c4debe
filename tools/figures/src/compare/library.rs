//! Other libraries, run in the lab by the scripts in `tools/figures/compare`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::comparison::Measurement;
use super::rank::{self, RankResult};
use sumac_lab::checkout::{NoScript, script};
use sumac_lab::lab::Lab;
use sumac_lab::process::{Process, ProcessError};
use sumac_lab::run::RunOptions;
use sumac_lab::trace::{Sampler, TraceError};

/// The Python that Debian's PyTorch and mpi4py are built for.
const PYTHON: &str = "/usr/bin/python3";

/// The scripts' exit code if their library is not installed.
const EXIT_MISSING: i32 = 3;

/// The time for a library to load and to connect its ranks. PyTorch takes seconds, on a busy machine many.
const START_LIMIT: Duration = Duration::from_secs(120);

/// All addresses of the lab.
const SUBNET: &str = "10.77.0.0/16";

/// The reason that a library has no measurements.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It is not installed.
    #[error("not installed; {install}")]
    Missing {
        /// The command that installs it.
        install: &'static str,
    },
    /// Its script is not there.
    #[error(transparent)]
    NoScript(#[from] NoScript),
    /// A rank did not start, failed or took too long.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A rank's results could not be read.
    #[error("reading the results in {path}: {source}")]
    Results {
        /// From where.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The frames of a worker could not be counted.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The ranks' results do not fit together.
    #[error("the ranks tell of different numbers of allreduces")]
    Disagreement,
}

/// Another library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Gloo,
    OpenMpi,
}

/// A library's numbers.
#[derive(Clone, Debug)]
pub struct Measured {
    pub version: String,
    pub measurement: Measurement,
}

impl Library {
    pub fn name(self) -> &'static str {
        match self {
            Library::Gloo => "Gloo",
            Library::OpenMpi => "Open MPI",
        }
    }

    fn install(self) -> &'static str {
        match self {
            Library::Gloo => "apt-get install python3-torch",
            Library::OpenMpi => "apt-get install openmpi-bin libopenmpi-dev python3-mpi4py",
        }
    }

    pub fn run(self, lab: &Lab, options: &RunOptions) -> Result<Measured, LibraryError> {
        let sampler = options.trace.then(|| Sampler::start(lab));
        let mut processes = match self {
            Library::Gloo => start_gloo(lab, options),
            Library::OpenMpi => start_open_mpi(lab, options).map(|process| vec![process]),
        }?;
        let limit = START_LIMIT + options.limit * (options.warmup + options.iterations);
        for process in &mut processes {
            process.wait_success("the end of its sums", limit).map_err(|error| self.explain(error))?;
        }
        let workers = 0..lab.spec().workers;
        let ranks = workers.map(|rank| self.result(lab, rank)).collect::<Result<Vec<_>, _>>()?;
        let spans = rank::spans(&ranks).ok_or(LibraryError::Disagreement)?;
        let mut measurement = rank::together(&ranks).ok_or(LibraryError::Disagreement)?;
        if let Some(sampler) = sampler {
            measurement.trace = Some(sampler.finish()?.of_typical(&spans, measurement.tat_s.median));
        }
        let version = ranks.into_iter().next().map_or_else(|| self.name().to_owned(), |first| first.library);
        Ok(Measured { version, measurement })
    }

    fn explain(self, error: ProcessError) -> LibraryError {
        match error {
            ProcessError::Ended { status, .. } if status.code() == Some(EXIT_MISSING) => {
                LibraryError::Missing { install: self.install() }
            }
            error => error.into(),
        }
    }

    fn result(self, lab: &Lab, rank: u16) -> Result<RankResult, LibraryError> {
        let path = match self {
            Library::Gloo => gloo_output(lab, rank),
            Library::OpenMpi => mpi_output(lab).with_extension(format!("json.{rank}")),
        };
        let read = fs::read_to_string(&path).and_then(|text| Ok(serde_json::from_str(&text)?));
        read.map_err(|source| LibraryError::Results { path, source })
    }
}

fn gloo_output(lab: &Lab, rank: u16) -> PathBuf {
    lab.folder().join(format!("gloo{rank}.json"))
}

/// Every rank appends its number.
fn mpi_output(lab: &Lab) -> PathBuf {
    lab.folder().join("mpi.json")
}

fn start_gloo(lab: &Lab, options: &RunOptions) -> Result<Vec<Process>, LibraryError> {
    let script = script("figures/compare/gloo.py")?;
    let spec = lab.spec();
    let start = |rank: u16| {
        let mut gloo = Command::new(PYTHON);
        gloo.arg(&script).args(["--rank", &rank.to_string(), "--world", &spec.workers.to_string()]);
        gloo.args(["--master", &spec.worker_ip(0).to_string(), "--interface", lab.worker_interface()]);
        gloo.args(["--timeout", &(START_LIMIT + options.limit).as_secs().to_string()]);
        gloo.args(sizes(options)).arg("--out").arg(gloo_output(lab, rank));
        lab.start(lab.worker(rank), &format!("gloo{rank}"), &mut gloo).map_err(LibraryError::from)
    };
    (0..spec.workers).map(start).collect()
}

fn start_open_mpi(lab: &Lab, options: &RunOptions) -> Result<Process, LibraryError> {
    let spec = lab.spec();
    let mut mpi = Command::new(script("figures/compare/mpi-run")?);
    mpi.args([lab.aggregator().name(), SUBNET]);
    mpi.args((0..spec.workers).map(|rank| format!("{}={}", lab.worker(rank).name(), spec.worker_ip(rank))));
    mpi.arg("--").args(sizes(options)).arg("--out").arg(mpi_output(lab));
    Ok(lab.start(lab.aggregator(), "mpi-run", &mut mpi)?)
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
