//! The training with PyTorch: a torchrun on each of some hosts, with several ranks each, the same script with
//! Sumac's backend and with Gloo.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::options::DemoOptions;
use super::results::TorchTrained;
use super::story;
use super::training::PYTHON;
use crate::checkout::script;
use crate::command;
use crate::deployment::Deployment;
use crate::process::Process;

/// The backends of `torch.distributed` that are compared.
const BACKENDS: [&str; 2] = ["sumac", "gloo"];

/// The timeout of one training. It takes seconds, but machines differ.
const LIMIT: Duration = Duration::from_secs(600);

/// The ranks of each host, as many as of one with that many GPUs.
pub(super) const RANKS_PER_HOST: u16 = 2;

/// The port of rank 0's rendezvous; each host has its own network namespace.
const PORT: u16 = 29500;

/// Returns the number of hosts of the training: with about as many ranks as the lab has hosts.
pub(super) fn hosts(options: &DemoOptions) -> u16 {
    (options.workers / RANKS_PER_HOST).max(2)
}

/// Checks that Python has PyTorch with `torch.distributed`.
pub fn check_torch() -> Result<()> {
    let mut import = Command::new(PYTHON);
    import.args([
        "-c",
        "import torch.distributed as d; assert d.is_available(), 'it is built without distributed'",
    ]);
    command::output(&mut import).map(|_| ()).map_err(|error| {
        let text = error.to_string();
        let why = text.lines().last().unwrap_or_default();
        anyhow!("the second training needs PyTorch in {PYTHON}: {why}; apt-get install python3-torch")
    })
}

/// Trains over the lab with each backend in turn.
pub(super) fn train(deployment: &Deployment<'_>, options: &DemoOptions) -> Result<Vec<TorchTrained>> {
    BACKENDS.iter().map(|backend| with_backend(deployment, options, backend)).collect()
}

fn with_backend(deployment: &Deployment<'_>, options: &DemoOptions, backend: &str) -> Result<TorchTrained> {
    let lab = deployment.lab();
    story::line(&format!("backend {backend}"));
    let out = lab.folder().join(format!("ddp-{backend}.json"));
    let mut nodes = Vec::new();
    for host in 0..hosts(options) {
        let mut torchrun = torchrun(deployment, options, backend, host)?;
        torchrun.arg("--out").arg(&out);
        nodes.push(lab.start_piped(lab.worker(host), &format!("torchrun-{backend}{host}"), &mut torchrun)?);
    }
    let speakers: Vec<_> = nodes
        .iter_mut()
        .filter_map(Process::take_stdout)
        .map(|out| std::thread::spawn(|| speak(out)))
        .collect();
    for node in &mut nodes {
        node.wait_success("the end of its training", LIMIT)?;
    }
    for speaker in speakers {
        // It ends with the trainer's output; what it could not print is no reason to fail.
        let _ = speaker.join();
    }
    read(&out)
}

/// One host's torchrun.
fn torchrun(deployment: &Deployment<'_>, options: &DemoOptions, backend: &str, host: u16) -> Result<Command> {
    let lab = deployment.lab();
    let ddp = script("demo/ddp.py")?;
    let mut torchrun = Command::new(PYTHON);
    torchrun.args(["-B", "-m", "torch.distributed.run", "--nnodes", &hosts(options).to_string()]);
    torchrun.args(["--node_rank", &host.to_string(), "--nproc_per_node", &RANKS_PER_HOST.to_string()]);
    torchrun.args([
        "--master_addr",
        &lab.spec().worker_ip(0).to_string(),
        "--master_port",
        &PORT.to_string(),
    ]);
    // Of these options Debian 12's PyTorch with its Python 3.11 understands only the values 1 and 2.
    torchrun.args(["--redirects", "1", "--tee", "1", "--log_dir"]).arg(lab.folder());
    torchrun.arg(&ddp).args(["--backend", backend, "--epochs", &options.epochs.to_string()]);
    // Gloo takes the address of the host's name otherwise, which is the same for all namespaces.
    torchrun.env("GLOO_SOCKET_IFNAME", lab.worker_interface());
    torchrun.env("SUMAC_SOCKET", deployment.socket(host)).env("SUMAC_SECRET_FILE", deployment.secret_file());
    torchrun.env("PYTHONPATH", client_folder(&ddp)).env("PYTHONDONTWRITEBYTECODE", "1");
    // As torchrun itself does where a host has several processes. Here all hosts have the same processors.
    torchrun.env("OMP_NUM_THREADS", "1");
    Ok(torchrun)
}

/// The folder of the Python client in the checkout that has the script.
fn client_folder(script: &Path) -> PathBuf {
    script.ancestors().nth(3).unwrap_or(script).join("userspace/python")
}

/// Prints rank 0's lines, without the name of the process that torchrun puts in front; the others print none.
fn speak(out: ChildStdout) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if let Some(start) = line.find("epoch ") {
            story::line(&format!("  {}", line.get(start..).unwrap_or_default()));
        }
    }
}

fn read(path: &Path) -> Result<TorchTrained> {
    let what = || format!("reading the result of a training, {}", path.display());
    let text = std::fs::read_to_string(path).with_context(what)?;
    serde_json::from_str(&text).with_context(what)
}
