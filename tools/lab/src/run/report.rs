//! What a run reports: one JSON object, or a few lines for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;
use sumac_wire::Reason;
use sumac_wire::header::HEADER_LEN;

use super::{Measured, RunOptions, Times};
use crate::cable::{BURST_BYTES, CableCounters};
use crate::cpu::MachineTime;
use crate::deployment::Deployment;
use crate::process::CpuTime;
use crate::spec::Topology;
use crate::trace::Trace;

/// Ethernet, IPv4 and UDP headers of a frame.
const FRAME_HEADERS: usize = 14 + 20 + 8;

/// The report of a run. Times are of the measured iterations, counters of the whole job.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Number of workers.
    pub workers: u16,
    /// Elements of each worker's tensor, 4 bytes each.
    pub elements: usize,
    /// Elements per chunk.
    pub chunk: u16,
    /// `xdp` or `udp`.
    pub backend: &'static str,
    /// What was really bound.
    pub modes: Modes,
    /// Seconds to aggregate: from the first worker's start to the last worker's sum.
    pub tat_s: Times,
    /// Aggregated elements per second per worker, by the median.
    pub ate_per_s: f64,
    /// Bits of tensor per second per worker and direction, by the median.
    pub goodput_bits_per_s: f64,
    /// The time that all frames of one direction take at the cable's rate, headers included, as part of the median, less
    /// what an idle cable lets pass at once; none without a rate.
    pub link_efficiency: Option<f64>,
    /// Whether every element of every worker has the bits of the reference.
    pub verified: bool,
    /// Elements that have not.
    pub wrong_elements: u64,
    /// Largest distance to the sum in double precision without rounding.
    pub max_abs_error: f64,
    /// Chunks sent again by all workers.
    pub retransmits: u64,
    /// Frames by kind.
    pub frames: Frames,
    /// Frames that were not taken, by whom and why.
    pub drops: Drops,
    /// CPU seconds of daemons and aggregator process during the measured allreduces.
    pub cpu_s: CpuTime,
    /// CPU seconds of the whole machine meanwhile: XDP programs, veths and bridges run in interrupts, which belong to no process.
    pub machine_cpu_s: MachineTime,
    /// Slots of the job.
    pub slots: u32,
    /// Measured allreduces.
    pub iterations: u32,
    /// What made the tensors' values. What the cables did to which frame is not repeatable: nftables takes no seed.
    pub seed: u64,
    /// How workers and aggregator were joined.
    pub topology: Topology,
    /// MTU of every interface.
    pub mtu: u32,
    /// Bits per second of each cable.
    pub rate: Option<u64>,
    /// What the cables did to frames, all together.
    pub injected: CableCounters,
    /// What worker 0 sent in each 10 ms, when that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

/// What was really bound.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Modes {
    /// Of the workers, such as `driver XDP, AF_XDP copy`; several when they differ.
    pub workers: BTreeSet<String>,
    /// Of the aggregator's ports; a process when there is no program.
    pub aggregator: BTreeSet<String>,
}

/// Frames by kind, of all workers together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Frames {
    /// Chunks sent for the first time.
    pub contributions: u64,
    /// Chunks sent again.
    pub resent: u64,
    /// Chunks taken for lost because later results had come.
    pub lost_by_order: u64,
    /// Chunks taken for lost because a timer expired.
    pub lost_by_timer: u64,
    /// Of both, those whose result came before they were sent again.
    pub spared: u64,
    /// Results taken.
    pub results: u64,
    /// Probes sent.
    pub probes: u64,
    /// Their answers.
    pub reports: u64,
    /// The eBPF aggregator's counters of frames that were welcome: added, completed, replied, sent and the like.
    pub aggregator: BTreeMap<String, u64>,
}

/// Frames that were not taken, by reason.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Drops {
    /// By the eBPF aggregator.
    pub aggregator: BTreeMap<String, u64>,
    /// By the workers' XDP programs.
    pub host_program: BTreeMap<String, u64>,
    /// By the workers' engines.
    pub engine: BTreeMap<String, u64>,
}

impl Report {
    pub(super) fn new(
        deployment: &Deployment<'_>,
        options: &RunOptions,
        measured: &Measured,
        stats: &[Value],
        aggregator: &Value,
        injected: CableCounters,
    ) -> Report {
        let spec = deployment.lab().spec();
        let times = Times::of_spans(&measured.spans);
        let elements = options.elements;
        let bits = wire_bytes(elements, options.sumac.chunk) as f64 * 8.0;
        let at_once = BURST_BYTES as f64 * 8.0;
        let frames = Frames::of(stats, aggregator);
        Report {
            workers: spec.workers,
            elements,
            chunk: options.sumac.chunk,
            backend: options.sumac.backend.name(),
            modes: Modes::of(stats, aggregator),
            tat_s: times,
            ate_per_s: elements as f64 / times.median,
            goodput_bits_per_s: elements as f64 * 32.0 / times.median,
            link_efficiency: spec.rate.map(|rate| (bits - at_once).max(0.0) / rate.0 as f64 / times.median),
            verified: measured.comparison.wrong == 0,
            wrong_elements: measured.comparison.wrong,
            max_abs_error: measured.comparison.max_abs_error,
            retransmits: frames.resent,
            frames,
            drops: Drops::of(stats, aggregator),
            cpu_s: measured.cpu,
            machine_cpu_s: measured.machine,
            slots: deployment.slots(),
            iterations: options.iterations,
            seed: options.seed,
            topology: spec.topology,
            mtu: spec.mtu,
            rate: spec.rate.map(|rate| rate.0),
            injected,
            trace: measured.trace.clone(),
        }
    }
}

impl Modes {
    /// From the daemons' statistics and the aggregator's status.
    pub(crate) fn of(stats: &[Value], aggregator: &Value) -> Modes {
        let workers = stats.iter().flat_map(|stats| list(&stats["ports"])).map(port_mode).collect();
        let ports = list(&aggregator["ports"]);
        let mut aggregator: BTreeSet<_> =
            ports.map(|port| format!("{} XDP", port["mode"].as_str().unwrap_or("no"))).collect();
        if aggregator.is_empty() {
            aggregator.insert("process".to_owned());
        }
        Modes { workers, aggregator }
    }
}

fn port_mode(port: &Value) -> String {
    match port["xdp_mode"].as_str() {
        None => format!("{} socket", port["backend"].as_str().unwrap_or("no").to_uppercase()),
        Some(mode) => {
            let bound: BTreeSet<_> =
                list(&port["sockets"]).map(|socket| bound_name(&socket["bound"])).collect();
            let bound = bound.into_iter().collect::<Vec<_>>().join(" and ");
            format!("{mode} XDP, AF_XDP {bound}")
        }
    }
}

fn bound_name(bound: &Value) -> &'static str {
    if bound["zero_copy"].as_bool() == Some(true) { "zero-copy" } else { "copy" }
}

impl Frames {
    /// From the daemons' statistics and the aggregator's status.
    pub(crate) fn of(stats: &[Value], aggregator: &Value) -> Frames {
        let engines: Vec<&Value> = engines(stats).collect();
        let sum = |field: &str| engines.iter().filter_map(|engine| engine[field].as_u64()).sum();
        let [lost_by_order, lost_by_timer, spared] =
            ["retransmits_fast", "retransmits_timer", "retransmits_spared"].map(sum);
        Frames {
            contributions: sum("chunks_sent"),
            resent: (lost_by_order + lost_by_timer).saturating_sub(spared),
            lost_by_order,
            lost_by_timer,
            spared,
            results: sum("results"),
            probes: sum("probes_sent"),
            reports: sum("reports"),
            aggregator: counters([&aggregator["counters"]], |name| !is_drop(name)),
        }
    }
}

impl Drops {
    fn of(stats: &[Value], aggregator: &Value) -> Drops {
        Drops {
            aggregator: counters([&aggregator["counters"]], is_drop),
            host_program: counters(stats.iter().map(|stats| &stats["host_program"]), is_drop),
            engine: counters(engines(stats).map(|engine| &engine["frames"]), is_drop),
        }
    }
}

/// Whether a counter counts frames that were not taken.
fn is_drop(name: &str) -> bool {
    let reason = Reason::ALL.iter().find(|reason| reason.name() == name);
    let spared = [Reason::NoSocket, Reason::Duplicate, Reason::Stale, Reason::NotForPort, Reason::Internal];
    reason.is_some_and(|reason| reason.is_refusal() || spared.contains(reason))
}

/// Adds up maps of counters, of the names that `wanted` likes, leaving out what never happened.
fn counters<'a>(
    maps: impl IntoIterator<Item = &'a Value>,
    wanted: impl Fn(&str) -> bool,
) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (name, count) in maps.into_iter().filter_map(Value::as_object).flatten() {
        let count = count.as_u64().unwrap_or(0);
        if count > 0 && wanted(name) {
            *sum.entry(name.clone()).or_default() += count;
        }
    }
    sum
}

fn engines(stats: &[Value]) -> impl Iterator<Item = &Value> {
    stats.iter().flat_map(|stats| list(&stats["jobs"])).map(|job| &job["engine"])
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Bytes that a tensor takes on a cable in one direction, with all headers.
pub(super) fn wire_bytes(elements: usize, chunk: u16) -> usize {
    let frames = elements.div_ceil(usize::from(chunk.max(1)));
    elements * 4 + frames * (FRAME_HEADERS + HEADER_LEN)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Times { median, min, max, .. } = self.tat_s;
        let join = |modes: &BTreeSet<String>| modes.iter().cloned().collect::<Vec<_>>().join("; ");
        writeln!(f, "{} workers, {} elements, chunks of {}", self.workers, self.elements, self.chunk)?;
        writeln!(f, "  workers       {}", join(&self.modes.workers))?;
        writeln!(f, "  aggregator    {}", join(&self.modes.aggregator))?;
        writeln!(f, "  time          {median:.4} s median of {} ({min:.4} to {max:.4})", self.iterations)?;
        writeln!(f, "  elements      {:.2} million/s per worker", self.ate_per_s / 1e6)?;
        if let Some(efficiency) = self.link_efficiency {
            writeln!(f, "  link          {:.1} % of its rate", efficiency * 100.0)?;
        }
        writeln!(f, "  retransmits   {} of {} chunks", self.retransmits, self.frames.contributions)?;
        let CpuTime { user, system } = self.cpu_s;
        let machine = self.machine_cpu_s.total();
        writeln!(f, "  CPU           {user:.2} s user, {system:.2} s system, {machine:.2} s of the machine")?;
        let verdict = if self.verified { "every element of every worker" } else { "FAILED" };
        write!(f, "  verified      {verdict}; largest rounding error {:.1e}", self.max_abs_error)?;
        if !self.verified {
            write!(f, "; {} elements wrong", self.wrong_elements)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn frames_and_drops_come_from_all_workers() {
        let worker = |chunks: u64| {
            json!({
                "jobs": [{"engine": {"chunks_sent": chunks, "retransmits_fast": 3, "retransmits_spared": 1, "frames": {"steered": 5, "duplicate": 2}}}],
                "ports": [{"backend": "xdp", "xdp_mode": "driver", "sockets": [{"bound": {"zero_copy": false}}]}],
                "host_program": {"foreign": 9, "bad_token": 3},
            })
        };
        let aggregator =
            json!({"ports": [{"mode": "driver"}], "counters": {"added": 7, "stale": 1, "sent": 0}});
        let stats = [worker(10), worker(20)];
        let frames = Frames::of(&stats, &aggregator);
        assert_eq!((frames.contributions, frames.resent, frames.spared), (30, 4, 2));
        assert_eq!(frames.aggregator, BTreeMap::from([("added".to_owned(), 7)]));
        let drops = Drops::of(&stats, &aggregator);
        assert_eq!(drops.engine, BTreeMap::from([("duplicate".to_owned(), 4)]));
        assert_eq!(drops.host_program, BTreeMap::from([("bad_token".to_owned(), 6)]));
        assert_eq!(drops.aggregator, BTreeMap::from([("stale".to_owned(), 1)]));
        let modes = Modes::of(&stats, &aggregator);
        assert_eq!(modes.workers, BTreeSet::from(["driver XDP, AF_XDP copy".to_owned()]));
        assert_eq!(modes.aggregator, BTreeSet::from(["driver XDP".to_owned()]));
    }

    #[test]
    fn headers_count_on_the_wire() {
        assert_eq!(wire_bytes(256, 256), 256 * 4 + 98);
        assert_eq!(wire_bytes(257, 256), 257 * 4 + 2 * 98);
    }
}
