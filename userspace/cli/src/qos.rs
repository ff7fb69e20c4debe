//! `sumac qos`: configurations of switches for the classes and the importance of Sumac's packets (MLT section
//! 5.2, appendix B).

mod queue;
mod tofino;

use std::{fmt::Write as _, process::ExitCode};

use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use sumac_wire::tos::DATA_CLASSES;

use self::{
    queue::{Queue, queues},
    tofino::Script,
};

#[derive(Debug, clap::Args)]
#[command(about = "Configurations of switches for Sumac's classes of packets")]
pub struct Args {
    #[command(subcommand)]
    command: Qos,
}

#[derive(Debug, Subcommand)]
enum Qos {
    Show(Show),
}

/// Prints a configuration: a strict priority queue for each class, and RED that drops packets which are not
/// ECN-capable.
///
/// Queues of higher classes have lower thresholds: the front layers are needed first, and tolerate more loss.
/// Of each class important packets are ECN-capable, and are marked where others are dropped. A Tofino
/// marks none: it drops by the colour of a packet in Sumac's program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sumac qos show --format tc --interface swp1 | sh")]
struct Show {
    /// The kind of switch.
    #[arg(long, visible_alias = "switch", value_enum, default_value_t)]
    format: Format,
    /// The interface; of a Tofino the ports' numbers (dev_port), separated by commas.
    #[arg(long, default_value = "eth1", default_value_if("format", "tofino", "0"))]
    interface: String,
    /// The bytes that one interface may queue, in KB of 1024 bytes.
    #[arg(long, default_value_t = 400, value_name = "KB",
        value_parser = clap::value_parser!(u32).range(24..=1_000_000))]
    buffer: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// SONiC: a part of config_db.json
    Sonic,
    /// Cumulus Linux: qos_features.conf and qos_infra.conf
    Cumulus,
    /// A Tofino that runs Sumac's P4 program: a script for bf_switchd's Python (bfshell -b)
    Tofino,
    /// Linux: a script of tc commands (prio, red and u32)
    #[default]
    Tc,
}

/// Bytes of a full packet, for RED's average.
const PACKET: u32 = 1_500;

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Qos::Show(show) = &args.command;
    let (text, warnings) = text(show)?;
    print!("{text}");
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(ExitCode::SUCCESS)
}

/// Returns the configuration, and warnings.
fn text(show: &Show) -> anyhow::Result<(String, Vec<String>)> {
    let queues = queues(show.buffer);
    let text = match show.format {
        Format::Sonic => sonic(&queues, &show.interface)?,
        Format::Cumulus => cumulus(&queues)?,
        Format::Tofino => {
            let Script { text, warnings } = tofino::script(&queues, &show.interface, show.buffer * 1024)?;
            return Ok((text, warnings));
        }
        Format::Tc => tc(&queues, &show.interface, show.buffer * 1024)?,
    };
    Ok((text, Vec::new()))
}

/// The thresholds of RED: a packet apart, so that all are dropped beyond.
fn red(threshold: u32) -> (u32, u32) {
    (threshold, threshold + 2 * PACKET)
}

fn tc(queues: &[Queue], interface: &str, buffer: u32) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let last = queues.len() - 1;
    let map = vec![last.to_string(); 16].join(" ");
    writeln!(out, "# Strict priority: band 0 is served first; other traffic is in the last one.")?;
    writeln!(
        out,
        "tc qdisc replace dev {interface} root handle 1: prio bands {} priomap {map}",
        queues.len()
    )?;
    for (band, queue) in queues.iter().enumerate() {
        writeln!(out, "# {}", queue.name)?;
        let parent = format!("dev {interface} parent 1:{:x} handle {:x}:", band + 1, 0x10 + band);
        match queue.threshold.map(red) {
            None => writeln!(out, "tc qdisc add {parent} bfifo limit {buffer}")?,
            Some((min, max)) => {
                // The shortest average that the kernel takes: RED is to act on the queue as it is.
                let burst = (2 * min + max) / (3 * PACKET) + 1;
                writeln!(
                    out,
                    "tc qdisc add {parent} red limit {buffer} min {min} max {max} avpkt {PACKET} burst \
                    {burst} bandwidth 10gbit probability 1 ecn"
                )?;
            }
        }
        for dscp in &queue.dscp {
            let tos = dscp << 2;
            writeln!(
                out,
                "tc filter add dev {interface} parent 1: protocol ip prio 1 u32 match ip tos {tos:#04x} 0xfc \
                flowid 1:{:x}",
                band + 1
            )?;
        }
    }
    Ok(out)
}

fn sonic(queues: &[Queue], interface: &str) -> Result<String, serde_json::Error> {
    let (mut dscp_to_tc, mut tc_to_queue, mut wred, mut bound) =
        (Map::new(), Map::new(), Map::new(), Map::new());
    for Queue { number, dscp, threshold, .. } in queues {
        for dscp in dscp {
            dscp_to_tc.insert(dscp.to_string(), json!(number.to_string()));
        }
        tc_to_queue.insert(number.to_string(), json!(number.to_string()));
        let mut entry = json!({"scheduler": "SUMAC_STRICT"});
        if let Some((min, max)) = threshold.map(red) {
            let name = format!("SUMAC_{number}");
            entry["wred_profile"] = json!(name);
            let profile = json!({
                "ecn": "ecn_all",
                "wred_green_enable": "true",
                "green_min_threshold": min.to_string(),
                "green_max_threshold": max.to_string(),
                "green_drop_probability": "100",
            });
            wred.insert(name, profile);
        }
        bound.insert(format!("{interface}|{number}"), entry);
    }
    // All other traffic is in the lowest class.
    for dscp in 0..64u8 {
        dscp_to_tc.entry(dscp.to_string()).or_insert(json!("0"));
    }
    let config = json!({
        "DSCP_TO_TC_MAP": {"SUMAC": Value::Object(dscp_to_tc)},
        "TC_TO_QUEUE_MAP": {"SUMAC": Value::Object(tc_to_queue)},
        "SCHEDULER": {"SUMAC_STRICT": {"type": "STRICT"}},
        "WRED_PROFILE": Value::Object(wred),
        "QUEUE": Value::Object(bound),
        "PORT_QOS_MAP": {interface: {"dscp_to_tc_map": "SUMAC", "tc_to_queue_map": "SUMAC"}},
    });
    serde_json::to_string_pretty(&config).map(|text| text + "\n")
}

fn cumulus(queues: &[Queue]) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let list = |numbers: &[u8]| numbers.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    writeln!(out, "# /etc/cumulus/datapath/qos/qos_features.conf")?;
    writeln!(out, "traffic.packet_priority_source_set = [dscp]")?;
    for Queue { number, dscp, .. } in queues.iter().rev() {
        let others = (0..64u8).filter(|dscp| queues.iter().all(|queue| !queue.dscp.contains(dscp)));
        let all: Vec<u8> = dscp.iter().copied().chain(others.filter(|_| *number == 0)).collect();
        writeln!(out, "traffic.cos_{number}.priority_source.dscp = [{}]", list(&all))?;
    }
    let groups: Vec<String> = (0..DATA_CLASSES).map(|class| format!("sumac_{class}")).collect();
    writeln!(out, "ecn_red.port_group_list = [{}]", groups.join(","))?;
    for Queue { number, threshold, .. } in queues.iter().rev() {
        let Some((min, max)) = threshold.map(red) else { continue };
        let group = format!("ecn_red.sumac_{number}");
        for (key, value) in [
            ("port_set", "allports".to_owned()),
            ("egress_queue_list", format!("[{number}]")),
            ("ecn_enable", "true".to_owned()),
            ("red_enable", "true".to_owned()),
            ("min_threshold_bytes", min.to_string()),
            ("max_threshold_bytes", max.to_string()),
            ("probability", "100".to_owned()),
        ] {
            writeln!(out, "{group}.{key} = {value}")?;
        }
    }
    writeln!(out, "\n# /etc/cumulus/datapath/qos/qos_infra.conf: 0 percent is strict priority")?;
    for Queue { number, .. } in queues.iter().rev() {
        writeln!(out, "default_egress_sched.egr_queue_{number}.bw_percent = 0")?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumac_wire::tos::{MAX_PRIORITY, assured_forwarding, class_selector};

    fn show(format: Format) -> String {
        let show = Show { format, interface: "swp1".into(), buffer: 384 };
        text(&show).unwrap_or_default().0
    }

    #[test]
    fn every_tag_has_one_queue_and_front_layers_the_lowest_threshold() {
        let queues = queues(384);
        let mut all: Vec<u8> = queues.iter().flat_map(|queue| queue.dscp.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 8, 10, 14, 16, 18, 22, 24, 26, 30, 32, 34, 38, 40, 48]);
        for priority in 0..=MAX_PRIORITY {
            for tos in [
                class_selector(priority),
                assured_forwarding(priority, true),
                assured_forwarding(priority, false),
            ] {
                assert!(all.contains(&(tos >> 2)), "priority {priority}: {tos:#x}");
            }
        }
        let thresholds: Vec<_> = queues.iter().filter_map(|queue| queue.threshold).collect();
        assert_eq!(thresholds, [1, 2, 3, 4, 5, 6].map(|share| share * 32 * 1024));
        assert_eq!(queues.iter().map(|queue| queue.number).collect::<Vec<_>>(), [6, 5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn sonic_is_json_with_a_class_for_every_dscp() {
        let Ok(config) = serde_json::from_str::<Value>(&show(Format::Sonic)) else { panic!("no JSON") };
        let map = &config["DSCP_TO_TC_MAP"]["SUMAC"];
        assert_eq!(map.as_object().map(Map::len), Some(64));
        assert_eq!(
            (&map["48"], &map["40"], &map["34"], &map["46"]),
            (&json!("6"), &json!("5"), &json!("5"), &json!("0"))
        );
        assert_eq!(config["QUEUE"]["swp1|5"]["wred_profile"], "SUMAC_5");
        assert_eq!(config["WRED_PROFILE"]["SUMAC_5"]["green_min_threshold"], "32768");
    }

    #[test]
    fn cumulus_lists_each_dscp_once() {
        let text = show(Format::Cumulus);
        let lists =
            text.lines().filter_map(|line| line.split_once(".priority_source.dscp = [")?.1.strip_suffix(']'));
        let mut all: Vec<u8> =
            lists.flat_map(|list| list.split(',')).filter_map(|dscp| dscp.parse().ok()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..64).collect::<Vec<u8>>());
        assert_eq!(text.matches("min_threshold_bytes").count(), 6);
    }

    #[test]
    fn tc_has_a_band_for_each_queue() {
        let text = show(Format::Tc);
        assert!(text.contains("root handle 1: prio bands 7 priomap 6 6 6"), "{text}");
        assert_eq!(
            (text.matches(" red limit 393216 ").count(), text.matches(" u32 match ip tos ").count()),
            (6, 15)
        );
        assert!(text.contains("match ip tos 0xc0 0xfc flowid 1:1\n"), "{text}");
    }
}
