//! The counters of daemons and aggregators, summed over all of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;
use sumac_wire::Reason;

use crate::deployment::Aggregator;

/// The modes as bound.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Modes {
    /// Of the workers, such as `driver XDP, AF_XDP copy`; several when they differ.
    pub workers: BTreeSet<String>,
    /// Of the aggregator's ports; `process` when there is no program, `none` when nobody aggregates, or the
    /// behavioural model.
    pub aggregator: BTreeSet<String>,
}

/// The average number of packets in a message of the UDP sockets; 1 without segmentation offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PacketsPerMessage {
    /// Of the workers' daemons.
    pub workers_sent: f64,
    pub workers_received: f64,
    /// Of the aggregators; 0 where no process aggregates.
    pub aggregator_sent: f64,
    pub aggregator_received: f64,
}

/// Frames by kind, of all workers together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Frames {
    /// Chunks sent for the first time.
    pub contributions: u64,
    /// Chunks whose elements were sent again.
    pub resent: u64,
    /// Packets without elements that asked whether a chunk had arrived.
    pub questions: u64,
    /// Their answers that the elements were wanted.
    pub missing: u64,
    /// Chunks taken for lost because later results had come.
    pub lost_by_order: u64,
    /// Chunks taken for lost because a timer expired.
    pub lost_by_timer: u64,
    /// Of both, those whose result came before they were asked about.
    pub spared: u64,
    /// Results taken.
    pub results: u64,
    /// Probes sent.
    pub probes: u64,
    /// Their answers.
    pub reports: u64,
    /// Chunks that a slot took from another.
    pub steals: u64,
    /// Chunks with the exponents of later ones.
    pub exponent_chunks: u64,
    /// Rounds that agreed on an exponent before a chunk.
    pub exponent_rounds: u64,
    /// The aggregators' counters of frames that were welcome: added, completed, replied, sent and the like.
    pub aggregator: BTreeMap<String, u64>,
}

/// Frames that were not taken, by reason.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Drops {
    pub aggregator: BTreeMap<String, u64>,
    pub host_program: BTreeMap<String, u64>,
    pub engine: BTreeMap<String, u64>,
}

impl Modes {
    /// From the daemons' statistics and the aggregators' status.
    pub(crate) fn of(kind: Aggregator, stats: &[Value], aggregators: &[Value]) -> Modes {
        let workers = stats.iter().flat_map(worker_modes).collect();
        let ports = aggregators.iter().flat_map(|aggregator| list(&aggregator["ports"]));
        let aggregator = match kind {
            Aggregator::Ebpf => {
                ports.map(|port| format!("{} XDP", port["mode"].as_str().unwrap_or("no"))).collect()
            }
            Aggregator::Host => BTreeSet::from(["process".to_owned()]),
            Aggregator::Bmv2 => BTreeSet::from([ON_MODEL.to_owned()]),
            Aggregator::None => BTreeSet::from(["none".to_owned()]),
        };
        Modes { workers, aggregator }
    }
}

/// The name of the P4 program on BMv2.
const ON_MODEL: &str = "P4 on the behavioural model, whose speed says nothing";

/// The modes of a worker's ports, as its jobs use them.
fn worker_modes(stats: &Value) -> impl Iterator<Item = String> + '_ {
    let is_over_udp = list(&stats["jobs"]).any(|job| job["backend"] == "udp");
    list(&stats["ports"]).map(move |port| port_mode(port, is_over_udp))
}

fn port_mode(port: &Value, is_over_udp: bool) -> String {
    match port["xdp_mode"].as_str() {
        Some(mode) if is_over_udp => format!("UDP socket beside AF_XDP, {mode} XDP"),
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

impl PacketsPerMessage {
    /// From the daemons' statistics and the aggregators' status; none without UDP sockets.
    pub(crate) fn of(stats: &[Value], aggregators: &[Value]) -> Option<PacketsPerMessage> {
        let ports = stats.iter().flat_map(|stats| list(&stats["ports"]));
        let sockets = ports.flat_map(|port| [port, &port["udp"]]);
        let workers: Vec<_> = sockets.filter(|port| port["backend"] == "udp").collect();
        if workers.is_empty() {
            return None;
        }
        let aggregators = aggregators.iter().flat_map(|aggregator| list(&aggregator["sockets"])).collect();
        let average = |sockets: &Vec<&Value>, packets: &str, messages: &str| {
            let sum = |field: &str| sockets.iter().filter_map(|socket| socket[field].as_f64()).sum::<f64>();
            sum(packets) / sum(messages).max(1.0)
        };
        Some(PacketsPerMessage {
            workers_sent: average(&workers, "sent", "batches_sent"),
            workers_received: average(&workers, "received", "batches_received"),
            aggregator_sent: average(&aggregators, "sent", "batches_sent"),
            aggregator_received: average(&aggregators, "received", "batches_received"),
        })
    }
}

impl Frames {
    /// From the daemons' statistics and the aggregators' status.
    pub(crate) fn of(stats: &[Value], aggregators: &[Value]) -> Frames {
        let engines: Vec<&Value> = engines(stats).collect();
        let sum = |field: &str| engines.iter().filter_map(|engine| engine[field].as_u64()).sum();
        let [lost_by_order, lost_by_timer, spared] =
            ["suspects_fast", "suspects_timer", "suspects_spared"].map(sum);
        Frames {
            contributions: sum("chunks_sent"),
            resent: sum("resent"),
            questions: sum("questions"),
            missing: sum("missing"),
            lost_by_order,
            lost_by_timer,
            spared,
            results: sum("results"),
            probes: sum("probes_sent"),
            reports: sum("reports"),
            steals: sum("steals"),
            exponent_chunks: sum("exponent_chunks"),
            exponent_rounds: sum("exponent_rounds"),
            aggregator: counters(counters_of(aggregators), |name| !is_drop(name)),
        }
    }
}

impl Drops {
    pub(super) fn of(stats: &[Value], aggregators: &[Value]) -> Drops {
        Drops {
            aggregator: counters(counters_of(aggregators), is_drop),
            host_program: counters(stats.iter().map(|stats| &stats["host_program"]), is_drop),
            engine: counters(engines(stats).map(|engine| &engine["frames"]), is_drop),
        }
    }
}

/// Round trips, of the worker with the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RoundTrips {
    /// Half of them are at most this long, in seconds.
    pub p50: f64,
    /// 99 of 100 are at most this long, in seconds.
    pub p99: f64,
}

impl RoundTrips {
    /// From the daemons' statistics; none when nothing was measured.
    pub(super) fn of(stats: &[Value]) -> Option<RoundTrips> {
        let longest = |quantile: &str| {
            let of = |engine: &Value| engine["round_trips"][quantile].as_f64();
            engines(stats).filter_map(of).reduce(f64::max).map(|ns| ns * 1e-9)
        };
        Some(RoundTrips { p50: longest("p50_ns")?, p99: longest("p99_ns")? })
    }
}

/// Whether a counter counts frames that were not taken.
fn is_drop(name: &str) -> bool {
    let reason = Reason::ALL.iter().find(|reason| reason.name() == name);
    let others = [
        Reason::NoSocket,
        Reason::Duplicate,
        Reason::Stale,
        Reason::NotForPort,
        Reason::Internal,
        Reason::Injected,
    ];
    reason.is_some_and(|reason| reason.is_refusal() || others.contains(reason))
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

fn counters_of(aggregators: &[Value]) -> impl Iterator<Item = &Value> {
    aggregators.iter().map(|aggregator| &aggregator["counters"])
}

pub(super) fn engines(stats: &[Value]) -> impl Iterator<Item = &Value> {
    stats.iter().flat_map(|stats| list(&stats["jobs"])).map(|job| &job["engine"])
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn frames_and_drops_come_from_all_workers() {
        let worker = |chunks: u64| {
            json!({
                "jobs": [{"engine": {"chunks_sent": chunks, "resent": 2,
                    "questions": 3, "suspects_spared": 1, "frames": {"steered": 5, "duplicate": 2}}}],
                "ports": [{"backend": "xdp",
                    "xdp_mode": "driver", "sockets": [{"bound": {"zero_copy": false}}]}],
                "host_program": {"foreign": 9, "bad_token": 3},
            })
        };
        let aggregator =
            [json!({"ports": [{"mode": "driver"}], "counters": {"added": 7, "stale": 1, "sent": 0}})];
        let stats = [worker(10), worker(20)];
        let frames = Frames::of(&stats, &aggregator);
        assert_eq!((frames.contributions, frames.resent), (30, 4));
        assert_eq!((frames.questions, frames.spared), (6, 2));
        assert_eq!(frames.aggregator, BTreeMap::from([("added".to_owned(), 7)]));
        let drops = Drops::of(&stats, &aggregator);
        assert_eq!(drops.engine, BTreeMap::from([("duplicate".to_owned(), 4)]));
        assert_eq!(drops.host_program, BTreeMap::from([("bad_token".to_owned(), 6)]));
        assert_eq!(drops.aggregator, BTreeMap::from([("stale".to_owned(), 1)]));
        let modes = Modes::of(Aggregator::Ebpf, &stats, &aggregator);
        assert_eq!(modes.workers, BTreeSet::from(["driver XDP, AF_XDP copy".to_owned()]));
        assert_eq!(modes.aggregator, BTreeSet::from(["driver XDP".to_owned()]));
        let over_udp = json!({ "jobs": [{ "backend": "udp" }], "ports": stats[0]["ports"] });
        let modes = Modes::of(Aggregator::Host, &[over_udp], &[]);
        assert_eq!(modes.workers, BTreeSet::from(["UDP socket beside AF_XDP, driver XDP".to_owned()]));
        let aggregated_by = |kind| Modes::of(kind, &stats, &[Value::Null]).aggregator.pop_first();
        assert_eq!(aggregated_by(Aggregator::Host).as_deref(), Some("process"));
        assert_eq!(aggregated_by(Aggregator::None).as_deref(), Some("none"));
    }
}
