//! The queues of a Tofino's traffic manager, for Sumac's P4 program.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use sumac_wire::tos::DATA_CLASSES;

use super::queue::Queue;

/// A chip's memory for packets, of which all queues have a part.
struct Chip {
    name: &'static str,
    cells: u32,
    /// Bytes of a cell.
    cell: u32,
}

/// BUFFER_CELLS and CELL_SIZE of open-p4studio's tm_tofino.h and tm_tof2.h.
const CHIPS: [Chip; 2] = [
    Chip { name: "Tofino 1", cells: 280 * 1024, cell: 80 },
    Chip { name: "Tofino 2", cells: 384 * 1024, cell: 176 },
];

/// Returns a line for each chip that has less memory than so many queues' guaranteed bytes at each port.
fn excess(sizes: &[u32], ports: usize) -> Vec<String> {
    let guaranteed = |cell: u32| sizes.iter().map(|size| u64::from(size / cell)).sum::<u64>() * ports as u64;
    let too_small = CHIPS.iter().filter(|chip| guaranteed(chip.cell) > chip.cells.into());
    let line = |Chip { name, cells, cell }: &Chip| {
        format!(
            "{name} has {} bytes for all packets, and these ports' queues are guaranteed {}: name fewer \
            ports, or a smaller --buffer",
            u64::from(*cells) * u64::from(*cell),
            guaranteed(*cell) * u64::from(*cell)
        )
    };
    too_small.map(line).collect()
}

/// A script, and the reasons that a chip may refuse it.
pub struct Script {
    pub text: String,
    pub warnings: Vec<String>,
}

/// Returns a script for the Python of `bf_switchd`, for these ports: numbers (dev_port) and commas.
///
/// Red packets have a limit in eighths of their queue's. So the queues have different sizes, each twice its
/// threshold, and share nothing: of a queue with a share in a pool it is not documented whether eighths are
/// of that too.
pub fn script(queues: &[Queue], ports: &str, buffer: u32) -> Result<Script> {
    let ports = ports
        .split(',')
        .map(|port| {
            port.trim().parse::<u16>().with_context(|| format!("--interface {ports}: not a dev_port"))
        })
        .collect::<Result<Vec<_>>>()?;
    let sizes: Vec<u32> = queues.iter().map(|queue| size(queue, buffer)).collect();
    let total: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
    let warnings = excess(&sizes, ports.len());
    let mut out = String::new();
    writeln!(out, "# bfshell -b FILE, after each load of the program.")?;
    writeln!(out, "# Guaranteed bytes of each port: {total}; of all: {}", total * ports.len() as u64)?;
    warnings.iter().try_for_each(|warning| writeln!(out, "# {warning}"))?;
    writeln!(out, "ports = {ports:?}")?;
    writeln!(out, "# Queue, bytes, whether packets that are not important are dropped from the half on.")?;
    writeln!(out, "queues = [")?;
    for (Queue { name, number, threshold, .. }, size) in queues.iter().zip(sizes) {
        let drops = if threshold.is_some() { "True" } else { "False" };
        writeln!(out, "    ({number}, {size}, {drops}),  # {name}")?;
    }
    out.push_str(CALLS);
    Ok(Script { text: out, warnings })
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
    fn a_chip_with_less_memory_than_is_guaranteed_is_named() {
        let of = |ports: u16| {
            let ports = (0..ports).map(|port| port.to_string()).collect::<Vec<_>>().join(",");
            let Ok(Script { text, warnings }) = script(&queues(384), &ports, 384 * 1024) else { panic!() };
            assert!(warnings.iter().all(|warning| text.contains(&format!("\n# {warning}\n"))), "{text}");
            warnings
        };
        // 22,937,600 bytes are enough for 15 ports, and 69,206,016 for 48.
        assert!(of(15).is_empty());
        let warnings = of(16);
        assert!(
            warnings.len() == 1 && warnings[0].starts_with("Tofino 1 has 22937600 bytes"),
            "{warnings:?}"
        );
        assert_eq!(of(48).len(), 1);
        let warnings = of(49);
        assert!(
            warnings.len() == 2 && warnings[1].starts_with("Tofino 2 has 69206016 bytes"),
            "{warnings:?}"
        );
    }

    /// The script finds out which chip it is, and has the bytes of its cell.
    #[test]
    fn the_script_has_the_cells_of_the_chips() {
        let [one, two] = CHIPS.map(|chip| chip.cell);
        assert!(
            CALLS.contains(&format!(
                "(bfrt.tf2.tm, {two}) if hasattr(bfrt, \"tf2\") else (bfrt.tf1.tm, {one})"
            ))
        );
    }

    #[test]
    fn a_queue_is_twice_its_threshold() {
        let Ok(Script { text, warnings }) = script(&queues(384), "8, 9", 384 * 1024) else { panic!("none") };
        assert!(text.contains("ports = [8, 9]\n") && warnings.is_empty(), "{text}");
        assert!(text.contains("# Guaranteed bytes of each port: 1441792; of all: 2883584\n"), "{text}");
        for row in
            ["(6, 65536, False),  # control", "(5, 65536, True),  # class 5", "(0, 393216, True),  # class 0"]
        {
            assert!(text.contains(row), "{text}");
        }
        assert!(script(&queues(384), "swp1", 384 * 1024).is_err());
    }
}
