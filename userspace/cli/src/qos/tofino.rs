//! The queues of a Tofino's traffic manager, for Sumac's P4 program.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use sumac_wire::tos::DATA_CLASSES;

use super::queue::Queue;

/// Returns a script for the Python of `bf_switchd`, for these ports: numbers (dev_port) and commas.
///
/// Red packets have a limit in eighths of their queue's. So the queues have different sizes, each twice its
/// threshold, and share nothing: of a queue with a share in a pool it is not documented whether eighths are
/// of that too.
pub fn script(queues: &[Queue], ports: &str, buffer: u32) -> Result<String> {
    let ports = ports
        .split(',')
        .map(|port| {
            port.trim().parse::<u16>().with_context(|| format!("--interface {ports}: not a dev_port"))
        })
        .collect::<Result<Vec<_>>>()?;
    let sizes = queues.iter().map(|queue| (queue, size(queue, buffer)));
    let total: u32 = sizes.clone().map(|(_, size)| size).sum();
    let mut out = String::new();
    writeln!(
        out,
        "# bfshell -b FILE, after each load of the program. Guaranteed bytes of each port: {total}"
    )?;
    writeln!(out, "ports = {ports:?}")?;
    writeln!(out, "# Queue, bytes, whether packets that are not important are dropped from the half on.")?;
    writeln!(out, "queues = [")?;
    for (Queue { name, number, threshold, .. }, size) in sizes {
        let drops = if threshold.is_some() { "True" } else { "False" };
        writeln!(out, "    ({number}, {size}, {drops}),  # {name}")?;
    }
    out.push_str(CALLS);
    Ok(out)
}

/// The bytes that a queue may hold.
fn size(queue: &Queue, buffer: u32) -> u32 {
    queue.threshold.map_or(buffer / u32::from(DATA_CLASSES), |threshold| 2 * threshold)
}

/// The calls: tables and fields of open-p4studio's bf_rt_tm_tf1.json and bf_rt_tm_tf2.json. A cell has 80
/// bytes on Tofino 1, and 176 on Tofino 2.
const CALLS: &str = r#"]
tm, cell = (bfrt.tf2.tm, 176) if hasattr(bfrt, "tf2") else (bfrt.tf1.tm, 80)
for dev_port in ports:
    port = tm.port.cfg.get(dev_port=dev_port, print_ents=False).data
    for queue, size, drops in queues:
        at = {"pipe": dev_port >> 7, "pg_id": port[b"pg_id"], "pg_queue": port[b"egress_qid_queues"][queue]}
        # Strict priority: queues of different priority share no bandwidth.
        tm.queue.sched_cfg.mod(min_priority=str(queue), max_priority=str(queue), **at)
        tm.queue.buffer.mod_with_buffer_only(guaranteed_cells=size // cell, tail_drop_enable=True, **at)
        tm.queue.color.mod(drop_enable=drops, drop_limit_yellow="50%", drop_limit_red="50%", **at)
# The program gives packets no colours before.
programs = [name for name in ("sumac", "sumac_static", "sumac_dynamic") if hasattr(bfrt, name)]
if not programs:
    raise SystemExit("the switch runs none of Sumac's programs: no packet has a colour")
for program in programs:
    getattr(bfrt, program).front.FrontIngress.selective.selective.set_default_with_on()
bfrt.complete_operations()
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::queue::queues;
    use sumac_wire::tos::{ECN_MASK, is_important, queue_of};

    const QUEUES_P4: &str = include_str!("../../../../p4/common/queues.p4");
    const COLOURS_P4: &str = include_str!("../../../../p4/tofino/colours.p4");

    /// The constant entries of a table: its lines `KEY : ACTION(VALUE);`.
    fn entries(source: &str) -> Vec<(&str, &str)> {
        let lines = source.lines().filter_map(|line| line.trim().split_once(" : "));
        lines.filter_map(|(key, action)| Some((key, action.split_once('(')?.1.strip_suffix(");")?))).collect()
    }

    #[test]
    fn the_program_has_the_same_queues() {
        let entries = entries(QUEUES_P4);
        assert_eq!(entries.len(), 14);
        for dscp in 0..64u8 {
            let found = entries.iter().find(|(key, _)| *key == dscp.to_string());
            let queue = found.map_or(0, |(_, number)| number.parse().unwrap_or(u8::MAX));
            for ecn in 0..=ECN_MASK {
                assert_eq!(queue, queue_of(dscp << 2 | ecn), "DSCP {dscp}, ECN {ecn}");
            }
        }
    }

    #[test]
    fn the_program_has_the_same_importance() {
        let fits = |pattern: &str, value: u8| pattern == "_" || pattern == value.to_string();
        let entries = entries(COLOURS_P4);
        assert_eq!(entries.len(), 11);
        for tos in 0..=u8::MAX {
            let of_tos = [1, tos >> 2, tos & ECN_MASK];
            let found = entries.iter().find(|(key, _)| {
                let patterns = key.trim_matches(['(', ')']).split(", ");
                patterns.zip(of_tos).all(|(pattern, value)| fits(pattern, value))
            });
            let colour = found.map_or("GREEN", |(_, colour)| colour);
            assert_eq!(colour, if is_important(tos) { "GREEN" } else { "RED" }, "{tos:#x}");
        }
    }

    #[test]
    fn a_queue_is_twice_its_threshold() {
        let text = script(&queues(384), "8, 9", 384 * 1024).unwrap_or_default();
        assert!(text.contains("ports = [8, 9]\n") && text.contains("each port: 1441792\n"), "{text}");
        for row in
            ["(6, 65536, False),  # control", "(5, 65536, True),  # class 5", "(0, 393216, True),  # class 0"]
        {
            assert!(text.contains(row), "{text}");
        }
        assert!(script(&queues(384), "swp1", 384 * 1024).is_err());
    }
}
