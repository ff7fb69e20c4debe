//! A cable: a bridge in a namespace of its own that shapes, loses, duplicates and reorders what passes.
//!
//! ```text
//!            namespace <lab>-c<rank>
//!        +-------------------------------+
//! worker-| near ====== bridge ====== far |-aggregator or switch
//!        |   \  nft at each ingress  /   |      up: near -> far, down: far -> near
//!        |    `-> out ~tbf~> in ----´    |      one detour per direction
//!        +-------------------------------+
//! ```
//!
//! A frame that comes in at a port is dropped, copied to the other port, sent on the detour, or left to the
//! bridge, each by a throw of nftables' random generator, which takes no seed. At the other port a token
//! bucket shapes. So all frames meet the same link, whoever made them: AF_XDP, an XDP program's redirect, or
//! the kernel's TCP.
//!
//! Where the lab marks congestion, a program in front of each shaper does: see `marking.rs`.
//!
//! The detour makes later frames overtake. This kernel has no netem, and a token bucket does not hold up a
//! single frame: it has tokens saved. So a frame goes in twice, marked first and second. The first spends the
//! tokens and is dropped behind the bucket, the second waits for new ones and goes on to the far port.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::command;
use crate::marking::Marking;
use crate::namespace::{Link, Namespace};
use crate::shaper::{BURST_BYTES, QUEUE_BYTES};
use crate::spec::{Faults, LabSpec};
use crate::units::{Probability, Rate};

/// The rate of the detour: a full frame takes some 60 us.
const DETOUR: Rate = Rate(200_000_000);

/// The port towards the worker.
pub const NEAR: &str = "near";
/// The port towards the aggregator.
pub const FAR: &str = "far";

#[derive(Clone, Debug)]
pub struct Cable {
    namespace: Namespace,
    marking: Option<Marking>,
}

/// The frames that a cable loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lossy {
    /// All.
    Frames,
    /// Sumac's data packets: none of another DSCP than data has, and nothing of the control plane.
    Data,
    /// Of those, the ones that do not say that they are important (not ECN-capable).
    Unimportant,
}

impl Lossy {
    /// The conditions of nftables that such a frame meets.
    fn conditions(self) -> &'static str {
        match self {
            Lossy::Frames => "",
            Lossy::Data => "udp dport 48700-48763 ip dscp != cs6 ",
            Lossy::Unimportant => "udp dport 48700-48763 ip dscp != cs6 ip ecn not-ect ",
        }
    }
}

/// Counters of one direction's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Injected {
    /// Frames that came in.
    pub frames: u64,
    /// Dropped on purpose.
    pub lost: u64,
    /// Sent on twice on purpose.
    pub duplicated: u64,
    /// Held up on purpose.
    pub reordered: u64,
    /// Dropped because the shaper's queue was full.
    pub overflowed: u64,
    /// Marked because more than the threshold waited at the shaper (CE, RFC 3168).
    pub marked: u64,
}

impl Injected {
    fn combine(self, other: Injected, with: fn(u64, u64) -> u64) -> Injected {
        Injected {
            frames: with(self.frames, other.frames),
            lost: with(self.lost, other.lost),
            duplicated: with(self.duplicated, other.duplicated),
            reordered: with(self.reordered, other.reordered),
            overflowed: with(self.overflowed, other.overflowed),
            marked: with(self.marked, other.marked),
        }
    }
}

/// Both directions of a cable, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CableCounters {
    /// From the worker.
    pub up: Injected,
    /// To the worker.
    pub down: Injected,
}

impl CableCounters {
    /// Each counter of both, added or subtracted.
    pub fn combine(self, other: CableCounters, with: fn(u64, u64) -> u64) -> CableCounters {
        CableCounters { up: self.up.combine(other.up, with), down: self.down.combine(other.down, with) }
    }
}

impl Cable {
    /// The cable in this namespace of a lab, whether it is built or not.
    pub(crate) fn of(namespace: Namespace, spec: &LabSpec) -> Cable {
        let marking = Marking::of(spec, namespace.name());
        Cable { namespace, marking }
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Joins the two ports, which exist, and arms shapers and faults.
    pub(crate) fn build(&self, spec: &LabSpec, link: Link) -> Result<()> {
        self.namespace.bridge_like_a_wire()?;
        let mut lines = vec![format!(
            "link add name patch mtu {} type bridge mcast_snooping 0 stp_state 0 forward_delay 0",
            link.mtu
        )];
        for port in [NEAR, FAR] {
            // Frames stay one by one: what GRO would gather here would be lost, or not, all together.
            lines.push(format!("link set dev {port} master patch gro_max_size 1"));
        }
        lines.push("link set dev patch up".into());
        let end = link.arguments();
        for direction in ["up", "down"] {
            lines.push(format!(
                "link add name {direction}-out {end} type veth peer name {direction}-in {end}"
            ));
        }
        self.namespace.ip(&lines)?;
        for interface in ["up-out", "up-in", "down-out", "down-in"] {
            self.namespace.wire_like(interface, link)?;
        }
        self.namespace.tc(&shapers(spec))?;
        self.namespace.nft(&rules(spec.faults, Lossy::Frames))?;
        if let Some(marking) = &self.marking {
            marking.build(&self.namespace, [("up", FAR), ("down", NEAR)])?;
        }
        Ok(())
    }

    /// Returns the faults injected so far.
    pub fn counters(&self) -> Result<CableCounters> {
        let rules = command::json(self.namespace.command("nft").args(["-j", "list", "counters"]))?;
        let queues = command::json(self.namespace.command("tc").args(["-j", "-s", "qdisc", "show"]))?;
        let marked = |direction| self.marking.as_ref().map_or(Ok(0), |marking| marking.marked(direction));
        let read = |direction: &str, port: &str, marked| Injected {
            frames: rule_count(&rules, &format!("{direction}_frames")),
            lost: rule_count(&rules, &format!("{direction}_lost")),
            duplicated: rule_count(&rules, &format!("{direction}_duplicated")),
            reordered: rule_count(&rules, &format!("{direction}_reordered")),
            overflowed: queue_drops(&queues, port),
            marked,
        };
        Ok(CableCounters { up: read("up", FAR, marked("up")?), down: read("down", NEAR, marked("down")?) })
    }

    /// Replaces the faults of both directions; the counters start again at zero.
    pub fn set_faults(&self, faults: Faults) -> Result<()> {
        self.set_rules(&rules(faults, Lossy::Frames))
    }

    /// Has both directions lose a part of such frames, without other faults; the counters start again at
    /// zero.
    pub fn lose(&self, loss: Probability, lossy: Lossy) -> Result<()> {
        self.set_rules(&rules(Faults { loss, ..Faults::default() }, lossy))
    }

    fn set_rules(&self, rules: &str) -> Result<()> {
        self.namespace.nft(&format!("delete table netdev cable\n{rules}"))
    }

    /// Sets the rate of both directions of a cable that has one.
    pub fn set_rate(&self, rate: Rate) -> Result<()> {
        let shapers = [NEAR, FAR].map(|port| format!("qdisc replace {}", shaper(port, rate)));
        self.namespace.tc(&shapers)
    }
}

fn shapers(spec: &LabSpec) -> Vec<String> {
    // The detour's bucket holds one frame of the largest size, headers included.
    let largest = spec.mtu + 64;
    let mut lines: Vec<_> = ["up-out", "down-out"]
        .iter()
        .map(|out| {
            let rate = DETOUR.0;
            format!("qdisc add dev {out} root tbf rate {rate}bit burst {largest} limit {QUEUE_BYTES}")
        })
        .collect();
    if let Some(rate) = spec.rate {
        for port in [NEAR, FAR] {
            lines.push(format!("qdisc add {}", shaper(port, rate)));
        }
    }
    lines
}

fn shaper(port: &str, rate: Rate) -> String {
    format!("dev {port} root tbf rate {}bit burst {BURST_BYTES} limit {QUEUE_BYTES}", rate.0)
}

/// The nftables script of both directions.
fn rules(faults: Faults, lossy: Lossy) -> String {
    let up = direction("up", NEAR, FAR, faults, lossy);
    let down = direction("down", FAR, NEAR, faults, lossy);
    format!("table netdev cable {{\n{up}{down}}}\n")
}

fn direction(name: &str, from: &str, to: &str, faults: Faults, lossy: Lossy) -> String {
    let Faults { loss, duplicate, reorder } = faults;
    let throw = |conditions: &str, probability: u32, then: String| match probability {
        0 => String::new(),
        millionths => format!("  {conditions}numgen random mod 1000000 < {millionths} {then}\n"),
    };
    let mut text = String::new();
    for counter in ["frames", "lost", "duplicated", "reordered"] {
        text += &format!(" counter {name}_{counter} {{ }}\n");
    }
    text += &format!(" chain {name} {{\n  type filter hook ingress device \"{from}\" priority 0\n");
    text += &format!("  counter name {name}_frames\n");
    text += &throw(lossy.conditions(), loss.0, format!("counter name {name}_lost drop"));
    text += &throw("", duplicate.0, format!("counter name {name}_duplicated dup to \"{to}\""));
    let detour = format!("meta mark set 1 dup to \"{name}-out\" meta mark set 2 fwd to \"{name}-out\"");
    text += &throw("", reorder.0, format!("counter name {name}_reordered {detour}"));
    text += &format!(
        " }}\n chain {name}-detour {{\n  type filter hook ingress device \"{name}-in\" priority 0\n  \
         meta mark 1 drop\n  meta mark 2 meta mark set 0 fwd to \"{to}\"\n }}\n"
    );
    text
}

fn rule_count(rules: &Value, name: &str) -> u64 {
    let counters =
        rules["nftables"].as_array().into_iter().flatten().filter_map(|entry| entry.get("counter"));
    counters.filter(|c| c["name"] == name).filter_map(|c| c["packets"].as_u64()).sum()
}

fn queue_drops(queues: &Value, port: &str) -> u64 {
    let queues = queues.as_array().into_iter().flatten();
    queues.filter(|queue| queue["dev"] == port).filter_map(|queue| queue["drops"].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_that_are_asked_for_are_thrown() {
        let faults = Faults { loss: Probability(10_000), ..Faults::default() };
        let script = rules(faults, Lossy::Frames);
        assert_eq!(script.matches("numgen random mod 1000000 < 10000").count(), 2, "{script}");
        assert_eq!(script.matches("numgen").count(), 2, "{script}");
        let script = rules(faults, Lossy::Unimportant);
        assert_eq!(script.matches("cs6 ip ecn not-ect numgen random").count(), 2, "{script}");
    }
}
