//! The present choice of a receive queue for a shard's packets: as text, and through `serde`.

use std::fmt;

use serde::Serialize;
use sumac_loader::Interface;

use super::{
    error::advice,
    flow_rules::{FlowRules, PortRule},
    records::RuleRecords,
    wanted,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueChoice {
    OneQueue,
    /// A rule for each shard's port.
    Rules,
    /// On a veth: the CPU on which the frame was sent.
    SendersCpu,
    /// The NIC's hash over known fields.
    Hash,
    /// The driver, by an unknown method.
    Driver,
}

#[derive(Clone, Debug, Serialize)]
pub struct Steering {
    /// For packets without a rule.
    pub by: QueueChoice,
    pub queues: u32,
    /// The rules for the shards' ports.
    pub rules: Vec<RuleStatus>,
    /// Ports whose packets no rule directs to their shard's queue; empty for one queue.
    pub without_rule: Vec<u16>,
    /// The fields of the NIC's hash over UDP packets, where the driver reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp4_hash: Option<Vec<&'static str>>,
    /// The reason for which the interface takes no rules; `None` when it does, or has one queue and needs
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_rules: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct RuleStatus {
    #[serde(flatten)]
    pub rule: PortRule,
    /// Whether Sumac inserted it.
    pub ours: bool,
}

/// Examines an interface whose shards have the UDP ports from `base_port` on, and the `selected` queues in
/// turn.
pub fn examine(
    interface: &Interface,
    (base_port, shards): (u16, u16),
    selected: &[u32],
    records: &RuleRecords,
) -> Steering {
    let mut steering = Steering {
        by: QueueChoice::OneQueue,
        queues: interface.rx_queues,
        rules: Vec::new(),
        without_rule: Vec::new(),
        udp4_hash: None,
        no_rules: None,
    };
    if interface.rx_queues <= 1 {
        return steering;
    }
    let reply = FlowRules::open(&interface.name).map(|flows| (flows.rules(), flows.udp4_hash().ok()));
    let (found, udp4_hash) = reply.unwrap_or_else(|error| (Err(error), None));
    steering.udp4_hash = udp4_hash;
    let found = found.unwrap_or_else(|error| {
        steering.no_rules = Some(format!("{} ({error})", advice(&interface.name, &error)));
        Vec::new()
    });
    // Without records, for want of a privilege, every rule is another's.
    let own = records.read().unwrap_or_default();
    steering.judge(&found, &own, &wanted(base_port, shards, selected));
    steering.by = steering.chosen_by(interface.kind.as_deref());
    steering
}

impl Steering {
    fn judge(&mut self, found: &[PortRule], own: &[PortRule], wanted: &[(u16, u32)]) {
        let is_for_shard = |rule: &&PortRule| wanted.iter().any(|(port, _)| *port == rule.port);
        let rules = found
            .iter()
            .filter(is_for_shard)
            .map(|rule| RuleStatus { rule: *rule, ours: own.contains(rule) });
        self.rules = rules.collect();
        let is_directed =
            |(port, queue): &(u16, u32)| found.iter().any(|rule| rule.port == *port && rule.queue == *queue);
        self.without_rule = wanted.iter().filter(|one| !is_directed(one)).map(|(port, _)| *port).collect();
    }

    fn chosen_by(&self, kind: Option<&str>) -> QueueChoice {
        match (self.without_rule.is_empty(), kind, &self.udp4_hash) {
            (true, ..) => QueueChoice::Rules,
            (false, Some("veth"), _) => QueueChoice::SendersCpu,
            (false, _, Some(fields)) if !fields.is_empty() => QueueChoice::Hash,
            _ => QueueChoice::Driver,
        }
    }

    /// Formats the steering in one sentence, with the consequence for a worker's host of packets on other
    /// queues.
    pub fn for_worker(&self) -> String {
        if self.is_whole() {
            return self.to_string();
        }
        format!("{self}; a packet on another queue than its shard's crosses threads")
    }

    pub fn is_whole(&self) -> bool {
        matches!(self.by, QueueChoice::OneQueue | QueueChoice::Rules)
    }
}

impl fmt::Display for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.rules.iter().map(RuleStatus::to_string).collect();
        let rules = rules.join(", ");
        let rest = match self.rules.is_empty() {
            true => "no rules".to_owned(),
            false => format!("{rules}; no matching rule for UDP port {}", list(&self.without_rule)),
        };
        let chosen = match self.by {
            QueueChoice::OneQueue => return f.write_str("one receive queue, nothing to steer"),
            QueueChoice::Rules => return write!(f, "a rule for each shard: {rules}"),
            QueueChoice::SendersCpu => "the queue is that of the CPU on which a frame was sent".to_owned(),
            QueueChoice::Hash => {
                let fields = self.udp4_hash.as_deref().unwrap_or_default().join(", ");
                format!("the NIC's hash over {fields} chooses one of {} queues", self.queues)
            }
            QueueChoice::Driver => {
                format!("the driver chooses one of {} queues, by an unknown method", self.queues)
            }
        };
        write!(f, "{rest}: {chosen}")
    }
}

impl fmt::Display for RuleStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortRule { location, port, queue } = self.rule;
        let owner = if self.ours { "Sumac's" } else { "another's" };
        write!(f, "rule {location} ({owner}) sends port {port} to queue {queue}")
    }
}

fn list(ports: &[u16]) -> String {
    const SHOWN: usize = 8;
    let mut shown: Vec<String> = ports.iter().take(SHOWN).map(u16::to_string).collect();
    if ports.len() > SHOWN {
        shown.push(format!("{} more", ports.len() - SHOWN));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: [(u16, u32); 2] = [(48700, 0), (48701, 1)];

    fn steering(found: &[PortRule], kind: Option<&str>, hash: Option<Vec<&'static str>>) -> Steering {
        let mut steering = Steering {
            by: QueueChoice::OneQueue,
            queues: 4,
            rules: Vec::new(),
            without_rule: Vec::new(),
            udp4_hash: hash,
            no_rules: None,
        };
        steering.judge(found, &[rule(7, 48700, 0)], &WANTED);
        steering.by = steering.chosen_by(kind);
        steering
    }

    fn rule(location: u32, port: u16, queue: u32) -> PortRule {
        PortRule { location, port, queue }
    }

    #[test]
    fn the_choice_of_queue_is_one_sentence() {
        let (first, second, other) = (rule(7, 48700, 0), rule(6, 48701, 1), rule(5, 53, 1));
        let hash = || Some(vec!["source address", "destination port"]);
        let table = [
            (
                "rules",
                steering(&[first, second, other], None, hash()),
                QueueChoice::Rules,
                "rule 7 (Sumac's) sends port 48700 to queue 0, rule 6 (another's)",
            ),
            (
                "one rule",
                steering(&[first], None, hash()),
                QueueChoice::Hash,
                "no matching rule for UDP port 48701: the NIC's hash over source address, destination port \
                chooses one of 4",
            ),
            (
                "a wrong rule",
                steering(&[first, rule(6, 48701, 3)], None, None),
                QueueChoice::Driver,
                "port 48701 to queue 3; no matching rule for UDP port 48701",
            ),
            ("a hash", steering(&[other], None, hash()), QueueChoice::Hash, "no rules: the NIC's hash"),
            (
                "a veth",
                steering(&[], Some("veth"), None),
                QueueChoice::SendersCpu,
                "no rules: the queue is that of the CPU",
            ),
            ("nothing known", steering(&[], None, Some(vec![])), QueueChoice::Driver, "by an unknown method"),
        ];
        for (name, steering, by, part) in table {
            assert_eq!((steering.by, steering.is_whole()), (by, by == QueueChoice::Rules), "{name}");
            assert!(steering.to_string().contains(part), "{name}: {steering}");
            assert_eq!(
                steering.for_worker().contains("crosses threads"),
                by != QueueChoice::Rules,
                "{name}: {steering}"
            );
        }
    }

    #[test]
    fn many_ports_are_cut_short() {
        assert_eq!(list(&[1, 2]), "1, 2");
        assert_eq!(list(&(1..=10).collect::<Vec<_>>()), "1, 2, 3, 4, 5, 6, 7, 8, 2 more");
    }
}
