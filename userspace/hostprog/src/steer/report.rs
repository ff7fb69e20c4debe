//! What chooses the receive queue of a shard's packets, as it is now: for people and, through `serde`, for programs.

use std::fmt;

use crate::steer::flow_rules::{FlowRules, PortRule};
use serde::Serialize;

use super::{advice, memory::Memory, wanted};
use crate::interface::Interface;

/// What chooses the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// There is one queue.
    OneQueue,
    /// A rule for each shard's port.
    Rules,
    /// A veth: the CPU on which the frame was sent.
    SendersCpu,
    /// The NIC's hash over fields that it tells.
    Hash,
    /// The driver, in a way that it does not tell.
    Driver,
}

/// How an interface's packets find their queues.
#[derive(Clone, Debug, Serialize)]
pub struct Steering {
    /// What chooses the queue of packets that no rule is for.
    pub by: By,
    /// Receive queues in use.
    pub queues: u32,
    /// The rules for the shards' ports.
    pub rules: Vec<RuleStatus>,
    /// Ports whose packets no rule leads to their shard's queue; empty for one queue.
    pub without_rule: Vec<u16>,
    /// What the NIC's hash over UDP packets is made of, where the driver tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp4_hash: Option<Vec<&'static str>>,
    /// Why the interface takes no rules; none when it does, or has one queue and needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_rules: Option<String>,
}

/// A rule for a shard's port.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RuleStatus {
    /// What it says.
    #[serde(flatten)]
    pub rule: PortRule,
    /// Whether Sumac put it in.
    pub ours: bool,
}

/// Looks at an interface whose shards have the UDP ports from `base_port` on, and the `selected` queues in turn.
#[must_use]
pub fn look(
    interface: &Interface,
    (base_port, shards): (u16, u16),
    selected: &[u32],
    memory: &Memory,
) -> Steering {
    let mut told = Steering {
        by: By::OneQueue,
        queues: interface.rx_queues,
        rules: Vec::new(),
        without_rule: Vec::new(),
        udp4_hash: None,
        no_rules: None,
    };
    if interface.rx_queues <= 1 {
        return told;
    }
    let asked = FlowRules::open(&interface.name).map(|flows| (flows.rules(), flows.udp4_hash().ok()));
    let (found, udp4_hash) = asked.unwrap_or_else(|error| (Err(error), None));
    told.udp4_hash = udp4_hash;
    let found = found.unwrap_or_else(|error| {
        told.no_rules = Some(format!("{} ({error})", advice(&interface.name, &error)));
        Vec::new()
    });
    // Without notes, for want of a privilege, every rule is somebody else's.
    let own = memory.read().unwrap_or_default();
    told.judge(&found, &own, &wanted(base_port, shards, selected));
    told.by = told.chosen_by(interface.kind.as_deref());
    told
}

impl Steering {
    fn judge(&mut self, found: &[PortRule], own: &[PortRule], wanted: &[(u16, u32)]) {
        let is_for_shard = |rule: &&PortRule| wanted.iter().any(|(port, _)| *port == rule.port);
        let told = found
            .iter()
            .filter(is_for_shard)
            .map(|rule| RuleStatus { rule: *rule, ours: own.contains(rule) });
        self.rules = told.collect();
        let leads =
            |(port, queue): &(u16, u32)| found.iter().any(|rule| rule.port == *port && rule.queue == *queue);
        self.without_rule = wanted.iter().filter(|one| !leads(one)).map(|(port, _)| *port).collect();
    }

    fn chosen_by(&self, kind: Option<&str>) -> By {
        match (self.without_rule.is_empty(), kind, &self.udp4_hash) {
            (true, ..) => By::Rules,
            (false, Some("veth"), _) => By::SendersCpu,
            (false, _, Some(fields)) if !fields.is_empty() => By::Hash,
            _ => By::Driver,
        }
    }

    /// What is told in one sentence, with what follows for a worker's host where packets can go astray.
    #[must_use]
    pub fn for_worker(&self) -> String {
        if self.is_whole() {
            return self.to_string();
        }
        format!("{self}; a packet on another queue than its shard's crosses threads")
    }

    /// Whether every shard's packets come to its queue.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self.by, By::OneQueue | By::Rules)
    }
}

impl fmt::Display for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.rules.iter().map(RuleStatus::to_string).collect();
        let rules = rules.join(", ");
        let rest = match self.rules.is_empty() {
            true => "no rules".to_owned(),
            false => format!("{rules}; no right rule for UDP port {}", list(&self.without_rule)),
        };
        let chosen = match self.by {
            By::OneQueue => return f.write_str("one receive queue, nothing to steer"),
            By::Rules => return write!(f, "a rule for each shard: {rules}"),
            By::SendersCpu => "the queue is that of the CPU on which a frame was sent".to_owned(),
            By::Hash => {
                let fields = self.udp4_hash.as_deref().unwrap_or_default().join(", ");
                format!("the NIC's hash over {fields} chooses one of {} queues", self.queues)
            }
            By::Driver => format!("the driver chooses one of {} queues, and does not tell how", self.queues),
        };
        write!(f, "{rest}: {chosen}")
    }
}

impl fmt::Display for RuleStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortRule { location, port, queue } = self.rule;
        let whose = if self.ours { "Sumac's" } else { "somebody else's" };
        write!(f, "rule {location} ({whose}) sends port {port} to queue {queue}")
    }
}

/// Numbers with commas, the first few of many.
fn list(ports: &[u16]) -> String {
    const SHOWN: usize = 8;
    let mut words: Vec<String> = ports.iter().take(SHOWN).map(u16::to_string).collect();
    if ports.len() > SHOWN {
        words.push(format!("{} more", ports.len() - SHOWN));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: [(u16, u32); 2] = [(48700, 0), (48701, 1)];

    fn told(found: &[PortRule], kind: Option<&str>, hash: Option<Vec<&'static str>>) -> Steering {
        let mut told = Steering {
            by: By::OneQueue,
            queues: 4,
            rules: Vec::new(),
            without_rule: Vec::new(),
            udp4_hash: hash,
            no_rules: None,
        };
        told.judge(found, &[rule(7, 48700, 0)], &WANTED);
        told.by = told.chosen_by(kind);
        told
    }

    fn rule(location: u32, port: u16, queue: u32) -> PortRule {
        PortRule { location, port, queue }
    }

    #[test]
    fn what_steers_is_told_in_a_sentence() {
        let (first, second, other) = (rule(7, 48700, 0), rule(6, 48701, 1), rule(5, 53, 1));
        let hash = || Some(vec!["source address", "destination port"]);
        let table = [
            (
                "rules",
                told(&[first, second, other], None, hash()),
                By::Rules,
                "rule 7 (Sumac's) sends port 48700 to queue 0, rule 6 (somebody else's)",
            ),
            (
                "one rule",
                told(&[first], None, hash()),
                By::Hash,
                "no right rule for UDP port 48701: the NIC's hash over source address, destination port chooses one of 4",
            ),
            (
                "a wrong rule",
                told(&[first, rule(6, 48701, 3)], None, None),
                By::Driver,
                "port 48701 to queue 3; no right rule for UDP port 48701",
            ),
            ("a hash", told(&[other], None, hash()), By::Hash, "no rules: the NIC's hash"),
            (
                "a veth",
                told(&[], Some("veth"), None),
                By::SendersCpu,
                "no rules: the queue is that of the CPU",
            ),
            ("nothing known", told(&[], None, Some(vec![])), By::Driver, "does not tell how"),
        ];
        for (what, told, by, words) in table {
            assert_eq!((told.by, told.is_whole()), (by, by == By::Rules), "{what}");
            assert!(told.to_string().contains(words), "{what}: {told}");
            assert_eq!(told.for_worker().contains("crosses threads"), by != By::Rules, "{what}: {told}");
        }
    }

    #[test]
    fn many_ports_are_cut_short() {
        assert_eq!(list(&[1, 2]), "1, 2");
        assert_eq!(list(&(1..=10).collect::<Vec<_>>()), "1, 2, 3, 4, 5, 6, 7, 8, 2 more");
    }
}
