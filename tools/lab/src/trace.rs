//! Frames that a worker sends per 10 ms, as in the paper's figure 7: the interface's own count, whoever
//! sends.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use serde::Serialize;

use crate::clock::{Span, monotonic};
use crate::lab::Lab;

const STEP: Duration = Duration::from_millis(10);

/// The field of sent packets behind the name in /proc/net/dev.
const SENT: usize = 9;

/// The frames that worker 0 sent during one allreduce.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Trace {
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds that this allreduce took, which is the one nearest to the median.
    pub tat_s: f64,
    /// Frames sent in each step from the beginning; the last one is shorter.
    pub frames: Vec<f64>,
}

type Sample = (f64, u64);

/// Counts what worker 0 sends until it is asked for the result.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Vec<Sample>>>>,
    host: String,
    interface: &'static str,
}

#[derive(Debug)]
pub struct Samples(Vec<Sample>);

impl Sampler {
    pub fn start(lab: &Lab) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, path) = (stop.clone(), lab.worker(0).path());
        let interface = lab.worker_interface();
        let thread = std::thread::spawn(move || {
            // Of this thread alone, which ends here.
            setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
            let counters = File::open("/proc/thread-self/net/dev")?;
            let mut samples = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                samples.push(sample(&counters, interface)?);
                std::thread::sleep(STEP / 2);
            }
            samples.push(sample(&counters, interface)?);
            Ok(samples)
        });
        Sampler { stop, thread: Some(thread), host: lab.worker(0).name().to_owned(), interface }
    }

    pub fn finish(mut self) -> Result<Samples> {
        self.stop.store(true, Ordering::Relaxed);
        let counted = self.thread.take().map(JoinHandle::join).and_then(Result::ok);
        let counted = counted.context("the thread that counts frames panicked")?.map(Samples);
        counted.with_context(|| format!("reading the counters of {} in {}", self.interface, self.host))
    }
}

impl Drop for Sampler {
    /// A thread in a namespace would keep it.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Samples {
    /// Returns the frames of the allreduce whose time is nearest to the median; empty without any.
    pub fn of_typical(&self, spans: &[Span], median: f64) -> Trace {
        let distance = |span: &&Span| (span.1 - span.0 - median).abs();
        let typical = spans.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        typical.map(|span| self.during(*span)).unwrap_or_default()
    }

    fn during(&self, (begin, end): Span) -> Trace {
        let step = STEP.as_secs_f64();
        let steps = ((end - begin) / step).ceil() as usize;
        let edges: Vec<f64> =
            (0..=steps).map(|edge| self.at((begin + edge as f64 * step).min(end))).collect();
        let frames = edges.windows(2).map(|pair| ((pair[1] - pair[0]) * 10.0).round() / 10.0);
        Trace { step_s: step, tat_s: end - begin, frames: frames.collect() }
    }

    /// The count at a time, on the straight line between the samples before and after it: a busy machine
    /// delays them.
    fn at(&self, time: f64) -> f64 {
        let after = self.0.partition_point(|(at, _)| *at < time);
        match (after.checked_sub(1).and_then(|before| self.0.get(before)), self.0.get(after)) {
            (Some(&(from, low)), Some(&(to, high))) => {
                low as f64 + (high - low) as f64 * (time - from) / (to - from)
            }
            (Some(&(_, count)), None) | (None, Some(&(_, count))) => count as f64,
            (None, None) => 0.0,
        }
    }
}

fn sample(counters: &File, interface: &str) -> io::Result<Sample> {
    let mut text = [0; 4096];
    let len = counters.read_at(&mut text, 0)?;
    let sent = parse(&String::from_utf8_lossy(&text[..len]), interface);
    let sent = sent.ok_or_else(|| io::Error::other("/proc/net/dev has no such line"))?;
    Ok((monotonic(), sent))
}

/// Packets sent, from /proc/net/dev.
fn parse(text: &str, interface: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    line.split_whitespace().nth(SENT)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sent_packets() {
        let text = "Inter-| Receive | Transmit\n face |bytes ...\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 \
        15 16\n  net0:100 22 0 0 0 0 0 0 900 77 0 0 0 0 0 0\n";
        assert_eq!(parse(text, "net0"), Some(77));
        assert_eq!(parse(text, "net"), None);
    }

    #[test]
    fn steps_are_cut_from_late_samples() {
        let samples = Samples(vec![(0.0, 0), (1.0, 0), (1.013, 130), (1.020, 200), (2.0, 200)]);
        let trace = samples.of_typical(&[(1.0, 1.025), (5.0, 9.0)], 0.03);
        assert_eq!(trace.frames, [100.0, 100.0, 0.0]);
        assert_eq!(samples.of_typical(&[], 0.03), Trace::default());
        assert_eq!(Samples(Vec::new()).of_typical(&[(1.0, 1.005)], 1.0).frames, [0.0]);
    }
}
