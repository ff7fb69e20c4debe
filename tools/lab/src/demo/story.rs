//! The texts of the demo.

use anyhow::{Result, anyhow};
use serde_json::json;

use super::options::DemoOptions;
use super::results::{Epoch, TorchTrained, Trained};
use crate::cable::CableCounters;
use crate::deployment::Deployment;
use crate::run::{Frames, Modes};

const EXPLANATION: &str = "
  One process rounds as the trainers do: the gradients of each worker's part of a batch are multiplied by what the
  largest value in a packet allows (block floating point), rounded to integers, and then added. So not only the accuracies
  agree: every bit of every weight does. Floats added in another order would have other last bits; the plain training
  shows what the rounding costs.";

/// The largest difference of accuracies that sums in another order and rounding explain: 5 of the 360 test
/// images.
const SAME_ACCURACY: f64 = 5.5 / 360.0;

/// Says what is going to happen.
pub(super) fn opening(options: &DemoOptions) {
    let DemoOptions { workers, epochs, .. } = options;
    println!(
        "{workers} trainers on {workers} hosts learn to read scikit-learn's digits, {epochs} epochs, each \
        with its part of\nevery batch. An aggregator on the path, an XDP program, adds up their gradients. \
        Beside each epoch stands the\naccuracy of the same training in one process on the same batches. \
        PyTorch then trains a larger network over the\nsame lab, once with Sumac's backend of \
        torch.distributed and once with Gloo."
    );
}

/// The same of the demo on the P4 program.
pub(super) fn opening_p4(options: &DemoOptions) {
    let DemoOptions { workers, epochs, loss, .. } = options;
    println!(
        "{workers} trainers on {workers} hosts learn to read scikit-learn's digits, {epochs} epochs, in \
        packets of 256 elements. Their gradients\nare summed by the XDP programs, then by the P4 program on \
        the behavioural model of a switch, then there with {loss} of\nthe frames lost. Beside each epoch \
        stands the accuracy of the same training in one process."
    );
}

pub(super) fn chapter(title: &str) {
    println!("\n{title}\n");
}

/// One epoch of the first trainer, beside the same in one process.
pub(super) fn epoch(line: &str, single: Option<&Epoch>) {
    match single {
        Some(single) => println!("  {line}   one process: {:.2} %", single.accuracy * 100.0),
        None => println!("  {line}"),
    }
}

/// One line of a training.
pub(super) fn line(line: &str) {
    println!("  {line}");
}

/// Prints the times of the trainings with PyTorch, and the path that Sumac's packets took.
pub(super) fn torch(deployment: &Deployment<'_>, trained: &[TorchTrained]) -> Result<()> {
    let mut stats = Vec::new();
    for rank in 0..deployment.lab().spec().workers {
        let daemon = deployment.client(rank)?.stats_json();
        stats.push(daemon.map_err(|error| anyhow!("the daemon of worker {rank}: {error}"))?);
    }
    let modes = Modes::of(deployment.options().aggregator(), &stats, &[deployment.aggregator_status()?]);
    println!();
    for TorchTrained { backend, torch, parameters, accuracy, steps, step_s, copies } in trained {
        let path = match copies {
            Some(copies) => {
                let [workers, aggregator] = [&modes.workers, &modes.aggregator].map(list);
                format!("{workers}, aggregator {aggregator}; {}", copies.name())
            }
            None => "the kernel's TCP".to_owned(),
        };
        println!(
            "    {backend:<6} accuracy {:.2} %   step {:.2} ms median, {:.2} ms most, of {steps}; \
            {parameters} gradients\n           PyTorch {torch} over {path}",
            accuracy * 100.0,
            step_s.median * 1e3,
            step_s.max * 1e3,
        );
    }
    Ok(())
}

/// Compares the accuracies with PyTorch; returns whether they are the same but for the rounding of sums.
pub(super) fn accuracies(trained: &[TorchTrained]) -> bool {
    let accuracies: Vec<f64> = trained.iter().map(|result| result.accuracy).collect();
    let (least, most) =
        accuracies.iter().fold((1.0, 0.0), |(least, most): (f64, f64), &one| (least.min(one), most.max(one)));
    let same = most - least <= SAME_ACCURACY;
    let backends: Vec<String> =
        trained.iter().map(|result| format!("{} {:.2} %", result.backend, result.accuracy * 100.0)).collect();
    let verdict = if same { "the same but for rounding" } else { "DIFFERENT" };
    println!("\n  PyTorch's DDP          accuracy {}  {verdict}", backends.join(", "));
    same
}

/// Prints the network's counters of the training.
pub(super) fn wire(deployment: &Deployment<'_>, trained: &[Trained]) -> Result<()> {
    let aggregators = [deployment.aggregator_status()?];
    let injected = deployment.lab().injected()?;
    let mut stats = Vec::new();
    for (rank, result) in (0..).zip(trained) {
        let daemon = deployment.client(rank)?.stats_json();
        let daemon = daemon.map_err(|error| anyhow!("the daemon of worker {rank}: {error}"))?;
        // The trainer asked for its job's counters before it left the job, which took them along.
        stats.push(
            json!({ "jobs": [result.job], "ports": daemon["ports"], "host_program": daemon["host_program"] }),
        );
    }
    let frames = Frames::of(&stats, &aggregators);
    let modes = Modes::of(deployment.options().aggregator(), &stats, &aggregators);
    let counter = |name: &str| frames.aggregator.get(name).copied().unwrap_or(0);
    let steered: u64 = stats.iter().filter_map(|stats| stats["host_program"]["steered"].as_u64()).sum();

    println!("\n  on the wire");
    let chunk = trained.first().and_then(|result| result.opened["elements"].as_u64()).unwrap_or(0);
    println!("    chunks         {} summed, of at most {chunk} elements", counter("completed"));
    println!(
        "    sent           {} frames, of these {} again",
        frames.contributions + frames.resent,
        frames.resent
    );
    println!("    workers' path  {}; {steered} results steered to sockets", list(&modes.workers));
    println!(
        "    aggregator     {}; {} contributions added, {} results sent",
        list(&modes.aggregator),
        counter("added") + counter("completed"),
        counter("sent") + counter("replied")
    );
    if injected != CableCounters::default() {
        let (up, down) = (injected.up, injected.down);
        println!(
            "    cables         {} of {} frames lost on the way up, {} of {} on the way down",
            up.lost, up.frames, down.lost, down.frames
        );
    }
    if let Some(spent) =
        trained.first().and_then(|result| result.epochs.last()).and_then(|epoch| epoch.allreduce_s)
    {
        println!(
            "    allreduce      {:.2} ms median, {:.2} ms most, of {} in the last epoch",
            spent.median * 1e3,
            spent.max * 1e3,
            spent.count
        );
    }
    Ok(())
}

/// Compares the weights of all trainings; returns whether those that must be the same are.
pub(super) fn weights(single: &Trained, plain: &Trained, clean: &[Trained], lossy: &[Trained]) -> bool {
    let (hosts, with_loss) = (format!("{} hosts", clean.len()), format!("{} hosts, with loss", lossy.len()));
    let same = same_weights(single, [(&*hosts, clean), (&*with_loss, lossy)]);
    println!(
        "  {:<22} accuracy {:.2} %   (floats all the way)",
        "one process, plain",
        plain.accuracy * 100.0
    );
    println!("{EXPLANATION}");
    same
}

/// Compares the weights of trainings with those of one process, and returns whether all are the same.
pub(super) fn same_weights<'a, T: AsRef<[Trained]> + ?Sized + 'a>(
    single: &Trained,
    trainings: impl IntoIterator<Item = (&'a str, &'a T)>,
) -> bool {
    let hash = &single.weights_sha256;
    println!(
        "  {:<22} accuracy {:.2} %   weights {}",
        "one process",
        single.accuracy * 100.0,
        hash.get(..16).unwrap_or_default()
    );
    let mut all_same = true;
    for (what, results) in trainings {
        let results = results.as_ref();
        let same = results.iter().all(|result| result.weights_sha256 == *hash);
        let verdict = if same { "bit-identical to one process" } else { "DIFFERENT" };
        let accuracy = results.first().map_or(0.0, |result| result.accuracy * 100.0);
        println!("  {what:<22} accuracy {accuracy:.2} %   weights {}  {verdict}", short(results));
        all_same &= same;
    }
    all_same
}

/// Says what is left of the labs.
pub(super) fn left_behind(left: &[String]) {
    if left.is_empty() {
        println!("\n  Left behind: no namespace, no program, no pin, no process (looked for each of them).");
    } else {
        println!("\n  LEFT BEHIND: {}", left.join(", "));
    }
}

fn short(results: &[Trained]) -> String {
    let hashes: std::collections::BTreeSet<_> =
        results.iter().map(|result| result.weights_sha256.get(..16).unwrap_or_default()).collect();
    hashes.into_iter().collect::<Vec<_>>().join(", ")
}

fn list(modes: &std::collections::BTreeSet<String>) -> String {
    modes.iter().cloned().collect::<Vec<_>>().join("; ")
}
