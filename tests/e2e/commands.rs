//! Commands of a user: `sumac allreduce`, and a trainer in Python.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |
//!                      +-----+
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use sumac_client::{JobOptions, Reduction, WireFormat};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::programs::Programs;
use sumac_tests::Trainer;
use sumac_tests::crew::sum;
use sumac_tests::exact::{self, ReferenceSum, Results};
use sumac_tests::npy;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::LIMIT;

const SEED: u64 = 5;
const COUNT: usize = 10_007;

/// Words per packet at an MTU of 1500.
const DEFAULT_WORDS: usize = 352;

/// Sums an array of each worker by `sumac allreduce`, with further options.
fn sum_files(sumac: &Deployment<'_>, job: &str, options: &[&str], direct: Option<f32>) {
    let lab = sumac.lab();
    let file = |rank: u16, what: &str| lab.folder().join(format!("{job}-{what}{rank}.npy"));
    let start = |rank: u16| {
        npy::write(&file(rank, "in"), (0..COUNT).map(|index| exact::value(SEED, rank, index)));
        let mut command = Programs::find().unwrap().sumac();
        command.args(["allreduce", "--job", job, "--world", "2", "--rank", &rank.to_string()]).args(options);
        command.arg("--socket").arg(sumac.socket(rank)).args([file(rank, "in"), file(rank, "out")]);
        lab.start(lab.worker(rank), &format!("{job}{rank}"), &mut command).unwrap()
    };
    for mut process in [0, 1].map(start) {
        process.wait_success("the sum", LIMIT).unwrap();
    }
    let by_rank = [0, 1].map(|rank| npy::read(&file(rank, "out"))).into();
    // The command takes the daemon's defaults.
    let numbers = ReferenceSum {
        ranks_per_host: 1,
        scale: None,
        wire: WireFormat::Int32,
        words: DEFAULT_WORDS,
        reduction: Reduction::Sum,
        direct,
        has_servers: false,
        dynamic: false,
    };
    exact::assert_sums("numpy files", SEED, &Results { numbers, by_rank });
}

#[test]
fn a_shell_sums_numpy_files() {
    with_sumac(LabSpec::new(2), &SumacOptions::default(), |sumac| {
        sum_files(sumac, "shell", &[], None);
        sum_files(sumac, "classes", &["--priority", "7", "--importance", "magnitude"], None);
        // Less than a chunk of the 29: a larger part may be missing, where a worker is late.
        sum_files(sumac, "bounded", &["--loss-bound", "0.01"], None);
        sum_files(sumac, "ring", &["--mode", "direct", "--topology", "ring"], Some(0.0));
    });
}

#[test]
fn python_and_rust_trainers_share_a_job() {
    const TRAINER: &str = "import sys, numpy, sumac
socket, source, target = sys.argv[1:]
with sumac.Client(socket) as client, client.open('mixed', rank=0, world=2, timeout=60) as job:
    values = numpy.load(source)
    gradient = job.buffer(values.shape, values.dtype)
    gradient[:] = values
    job.allreduce(gradient)
    numpy.save(target, gradient)
";
    with_sumac(LabSpec::new(2), &SumacOptions::default(), |sumac| {
        let lab = sumac.lab();
        let (source, target) = (lab.folder().join("in.npy"), lab.folder().join("out.npy"));
        npy::write(&source, (0..COUNT).map(|index| exact::value(SEED, 0, index)));
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", TRAINER]).arg(sumac.socket(0)).args([&source, &target]);
        command.env("PYTHONPATH", workspace().join("userspace/python"));
        let mut python = lab.start(lab.worker(0), "python", &mut command).unwrap();

        let options = JobOptions::new("mixed", 1, 2).timeout(LIMIT);
        let rust = Trainer::open(sumac.socket(1), 1, &options)
            .unwrap_or_else(|e| panic!("{e}: {}", python.log_tail()));
        let rusts = sum(rust.submit(SEED, COUNT)).to_vec();
        python.wait_success("the sum", LIMIT).unwrap();
        let numbers = ReferenceSum::of(rust.job.opened(), Reduction::Sum, 0.0);
        rust.job.close().unwrap();
        assert_eq!(numbers.words, DEFAULT_WORDS);
        exact::assert_sums(
            "Python beside Rust",
            SEED,
            &Results { numbers, by_rank: vec![npy::read(&target), rusts] },
        );
    });
}

/// The folder of the repository.
fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_owned()
}
