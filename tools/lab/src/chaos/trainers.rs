//! The trainers of one job as processes, and what they have reported since the last kill.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::Signal;

use super::trainer::{Doing, Event};
use crate::clock::monotonic;
use crate::deployment::Deployment;
use crate::interrupt;
use crate::process::Process;
use crate::programs::Programs;

/// The name of the job.
const JOB: &str = "chaos";

/// The first error of a trainer after a kill.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub at: f64,
    pub doing: Doing,
    pub ranks: Vec<u16>,
    pub message: String,
}

/// One trainer's reports.
#[derive(Debug, Default)]
struct Member {
    process: Option<Process>,
    /// The number of its process: lines of an earlier one come late.
    incarnation: u64,
    /// The ends of the sums since the last mark.
    sums: Vec<f64>,
    /// The first failed operation since the last mark.
    fault: Option<Fault>,
    /// The latest error of any kind, for messages.
    last: Option<String>,
    /// Sums since the last failure.
    steady: u32,
}

/// All trainers.
#[derive(Debug)]
pub struct Trainers {
    members: Vec<Member>,
    events: Receiver<(u16, u64, Event)>,
    sender: Sender<(u16, u64, Event)>,
    elements: usize,
    seed: u64,
    /// Sums of all workers so far, and those that were wrong.
    pub sums: u64,
    pub wrong: u64,
    /// Calls to connect and to open the job that failed, by message.
    pub refused: BTreeMap<String, u64>,
}

impl Trainers {
    /// Starts one trainer for each worker.
    pub fn start_all(sumac: &Deployment<'_>, elements: usize, seed: u64) -> Result<Trainers> {
        let (sender, events) = channel();
        let members = (0..sumac.lab().spec().workers).map(|_| Member::default()).collect();
        let mut trainers =
            Trainers { members, events, sender, elements, seed, sums: 0, wrong: 0, refused: BTreeMap::new() };
        for rank in 0..sumac.lab().spec().workers {
            trainers.start(sumac, rank)?;
        }
        Ok(trainers)
    }

    /// Starts a trainer, which must not run.
    pub fn start(&mut self, sumac: &Deployment<'_>, rank: u16) -> Result<()> {
        let spec = sumac.lab().spec();
        let dynamic = sumac.options().dynamic;
        let mode = sumac.mode();
        let hosts = spec.parameter_hosts + dynamic.map_or(0, |dynamic| dynamic.co_located);
        let mut command = Programs::find()?.sumac_lab();
        command.arg("trainer").arg("--socket").arg(sumac.socket(rank));
        command.args(["--job", JOB, "--mode", mode.name()]);
        let (elements, seed) = (self.elements as u64, self.seed);
        let numbers = [("--rank", u64::from(rank)), ("--world", u64::from(spec.workers))];
        let more = [("--elements", elements), ("--seed", seed), ("--parameter-hosts", u64::from(hosts))];
        for (name, value) in numbers.into_iter().chain(more) {
            command.args([name, &value.to_string()]);
        }
        let what = format!("trainer{rank}");
        let mut process = sumac.lab().start_piped(sumac.lab().worker(rank), &what, &mut command)?;
        let output = process.take_stdout().context("the trainer's output is piped")?;
        let member = self.member(rank)?;
        member.incarnation += 1;
        member.process = Some(process);
        let (incarnation, sender) = (member.incarnation, self.sender.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(event) = serde_json::from_str(&line) else { continue };
                if sender.send((rank, incarnation, event)).is_err() {
                    break;
                }
            }
        });
        Ok(())
    }

    fn member(&mut self, rank: u16) -> Result<&mut Member> {
        self.members.get_mut(usize::from(rank)).ok_or_else(|| anyhow!("there is no trainer {rank}"))
    }

    /// Sends SIGKILL to a trainer.
    pub fn kill(&mut self, rank: u16) {
        if let Some(member) = self.members.get_mut(usize::from(rank)) {
            member.process.iter().for_each(|process| process.signal(Signal::SIGKILL));
            // Reaps it.
            member.process = None;
            member.incarnation += 1;
            member.steady = 0;
        }
    }

    /// Kills all trainers.
    pub fn kill_all(&mut self) {
        (0..self.members.len() as u16).for_each(|rank| self.kill(rank));
    }

    /// Forgets what was reported, at the moment of a kill.
    pub fn mark(&mut self) {
        self.receive(Duration::ZERO);
        for member in &mut self.members {
            member.sums.clear();
            (member.fault, member.last, member.steady) = (None, None, 0);
        }
    }

    /// Takes what arrives within this time.
    fn receive(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while let Ok((rank, incarnation, event)) =
            self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            let Some(member) = self.members.get_mut(usize::from(rank)) else { continue };
            if member.incarnation != incarnation {
                continue;
            }
            match event {
                Event::Opened { .. } => member.steady = 0,
                Event::Sum { at, wrong } => {
                    self.sums += 1;
                    self.wrong += u64::from(wrong > 0);
                    member.sums.push(at);
                    member.steady += 1;
                }
                Event::Failed { at, doing, ranks, message, .. } => {
                    member.steady = 0;
                    member.last = Some(message.clone());
                    if doing == Doing::Sum {
                        member.fault.get_or_insert(Fault { at, doing, ranks, message });
                    } else {
                        *self.refused.entry(without_numbers(&message)).or_default() += 1;
                    }
                }
            }
        }
    }

    /// Waits until every trainer, except `without`, has ended two sums since `kill`, or failed; returns
    /// whether all have.
    pub fn settle(&mut self, kill: f64, without: Option<u16>, limit: Duration) -> Result<bool> {
        let settled = |(rank, member): (u16, &Member)| {
            // The first of two sums may have been under way.
            let passed = member.sums.iter().filter(|at| **at > kill).count() >= 2;
            without == Some(rank) || passed || member.fault.is_some()
        };
        self.wait(limit, |members| (0..).zip(members).all(settled))
    }

    /// Waits until every trainer has ended this many sums without a failure since; returns whether all have.
    pub fn wait_steady(&mut self, sums: u32, limit: Duration) -> Result<bool> {
        self.wait(limit, |members| members.iter().all(|member| member.steady >= sums))
    }

    fn wait(&mut self, limit: Duration, done: impl Fn(&[Member]) -> bool) -> Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            self.receive(Duration::from_millis(10));
            if done(&self.members) {
                return Ok(true);
            }
            interrupt::check()?;
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }

    /// Lets time pass.
    pub fn pause(&mut self, time: Duration) {
        self.receive(time);
    }

    /// The first failed operation of each trainer since the mark.
    pub fn faults(&self) -> impl Iterator<Item = (u16, &Fault)> {
        (0..).zip(&self.members).filter_map(|(rank, member)| Some((rank, member.fault.as_ref()?)))
    }

    /// The longest time that a trainer without a failure was without a sum since `kill`. The first sum may
    /// have been all but complete, and so the second one counts as well.
    pub fn longest_gap(&self, kill: f64) -> f64 {
        let gap = |member: &Member| {
            let mut ends: Vec<f64> = member.sums.iter().copied().filter(|at| *at > kill).collect();
            if ends.is_empty() {
                ends.push(monotonic());
            }
            let begins = std::iter::once(kill).chain(ends.iter().copied());
            begins.zip(&ends).map(|(begin, end)| end - begin).fold(0.0, f64::max)
        };
        self.members.iter().map(gap).fold(0.0, f64::max)
    }

    /// A line about each trainer, for messages.
    pub fn describe(&self) -> String {
        let line = |(rank, member): (usize, &Member)| {
            let last = member.last.as_deref().unwrap_or("no error");
            format!("rank {rank}: {} sums since, {last}", member.sums.len())
        };
        self.members.iter().enumerate().map(line).collect::<Vec<_>>().join("; ")
    }
}

/// A message with each number as `#`, so that those of one kind are the same.
fn without_numbers(message: &str) -> String {
    let mut text = String::new();
    for c in message.chars() {
        match c {
            '0'..='9' if text.ends_with('#') => {}
            '0'..='9' => text.push('#'),
            _ => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_kind_are_counted_together() {
        assert_eq!(without_numbers("rank 12 (10.77.0.2) left"), "rank # (#.#.#.#) left");
    }
}
