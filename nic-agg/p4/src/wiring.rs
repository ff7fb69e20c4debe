//! The file that lists the switch's ports, its own addresses, and the hosts behind each port.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    path::Path,
};

use serde::{Deserialize, Deserializer, de::Error as _};
use sumac_wire::tables::WorkerEntry;

use crate::{
    sizes::{Compiled, SizeOptions, Sizes},
    tables::{hosts, own},
    target::{Entry, SwitchError},
};

/// Ports have 9 bits in the programs.
const PORTS: u32 = 512;
/// Of a chip's port, the bits below its pipe.
const PORT_BITS: u32 = 7;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wiring {
    /// The sizes of the program: those of the file and the default ones, until the program is known.
    #[serde(skip)]
    pub program: Sizes,
    #[serde(default, rename = "program")]
    given: SizeOptions,
    pub ports: Vec<SwitchPort>,
    /// The path of the file, for messages.
    #[serde(skip)]
    path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchPort {
    pub number: u32,
    /// The switch's own address on this side.
    pub ip: Ipv4Addr,
    #[serde(deserialize_with = "mac")]
    pub mac: [u8; 6],
    #[serde(default)]
    pub hosts: Vec<Host>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    pub ip: Ipv4Addr,
    /// Its own MAC address; behind a router the router's.
    #[serde(deserialize_with = "mac")]
    pub mac: [u8; 6],
}

impl Wiring {
    pub fn read(path: &Path) -> Result<Wiring, SwitchError> {
        let name = path.display().to_string();
        let failed =
            |error: std::io::Error| SwitchError::File { path: name.clone(), what: error.to_string() };
        Wiring::parse(&fs::read_to_string(path).map_err(failed)?, &name)
    }

    /// Parses the text of a file; `path` is for messages.
    pub fn parse(text: &str, path: &str) -> Result<Wiring, SwitchError> {
        let failed = |what: String| SwitchError::File { path: path.to_owned(), what };
        let wiring: Wiring = toml::from_str(text).map_err(|error| failed(error.to_string()))?;
        wiring.check().map_err(failed)?;
        let program = wiring.given.with(&wiring.given.assumed()).map_err(failed)?;
        Ok(Wiring { path: path.to_owned(), program, ..wiring })
    }

    /// Takes the sizes of the switch's program.
    ///
    /// # Errors
    /// When the file has others, or a port of hosts on a pipe whose ports are in loopback.
    pub fn fit(&mut self, program: &Compiled) -> Result<(), SwitchError> {
        let failed = |what: String| SwitchError::File { path: self.path.clone(), what };
        for port in &self.ports {
            let pipe = port.number >> PORT_BITS;
            if program.slots_pipes.contains(&pipe) {
                return Err(failed(format!(
                    "port {} is of pipe {pipe}, which has the program's slots and whose ports are in \
                    loopback: use a port of another pipe",
                    port.number
                )));
            }
        }
        self.program = self.given.with(program).map_err(failed)?;
        let is_other =
            |port: &&SwitchPort| program.front_pipe.is_some_and(|pipe| port.number >> PORT_BITS != pipe);
        if self.program.bounds_loss
            && let Some(port) = self.ports.iter().find(is_other)
        {
            // A pipe has registers of its own: its workers' terms are unknown where flushes are granted.
            self.program.bounds_loss = false;
            tracing::info!(
                port = port.number,
                pipe = program.front_pipe,
                "static jobs have no loss bounds: use ports of this pipe alone"
            );
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let (mut numbers, mut own, mut macs, mut ips) =
            (BTreeSet::new(), BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for port in &self.ports {
            if port.number >= PORTS || !numbers.insert(port.number) {
                return Err(format!("port {}: give each number below {PORTS} once", port.number));
            }
            if *own.entry(port.ip).or_insert(port.mac) != port.mac {
                return Err(format!("the switch's own address {} has two MAC addresses", port.ip));
            }
            for host in &port.hosts {
                if !ips.insert(host.ip) {
                    return Err(format!("host {} is listed twice", host.ip));
                }
                if *macs.entry(host.mac).or_insert(port.number) != port.number {
                    return Err(format!("the MAC address of host {} is behind two ports", host.ip));
                }
            }
        }
        Ok(())
    }

    /// Returns the way to an address: its port, and the MAC addresses and own address there.
    ///
    /// # Errors
    /// In words, when no port has it.
    pub fn hop(&self, ip: Ipv4Addr, port: u16) -> Result<WorkerEntry, String> {
        let host = |at: &SwitchPort| at.hosts.iter().find(|host| host.ip == ip).copied();
        let found = self.ports.iter().find_map(|at| Some((at, host(at)?)));
        let (at, host) = found.ok_or_else(|| {
            format!("add it to the hosts of its port in {}: {{ ip = \"{ip}\", mac = \"...\" }}", self.path)
        })?;
        Ok(WorkerEntry {
            ip: ip.to_bits(),
            aggregator_ip: at.ip.to_bits(),
            ifindex: at.number,
            port,
            mac: host.mac,
            aggregator_mac: at.mac,
            ..WorkerEntry::default()
        })
    }

    /// Returns the entries that do not depend on jobs.
    pub fn entries(&self) -> Vec<Entry> {
        let of_port = |port: &SwitchPort| {
            let hosts = port.hosts.iter().map(|host| hosts::entry(host.mac, port.number));
            hosts.chain([own::entry(port.ip, port.mac)]).collect::<Vec<_>>()
        };
        self.ports.iter().flat_map(of_port).collect()
    }
}

fn mac<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 6], D::Error> {
    let text = String::deserialize(from)?;
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    bytes.ok_or_else(|| D::Error::custom(format!("`{text}` is no MAC address, such as 02:00:00:00:00:01")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        [[ports]]
        number = 1
        ip = '10.77.0.1'
        mac = '02:00:00:00:00:01'
        hosts = [{ ip = '10.77.0.2', mac = '02:00:00:00:00:02' }, { ip = '10.77.0.3', mac = '02:00:00:00:00:03' }]

        [[ports]]
        number = 2
        ip = '10.77.1.1'
        mac = '02:00:00:00:00:01'
    ";

    #[test]
    fn a_host_is_found_behind_its_port() {
        let wiring = Wiring::parse(FILE, "/etc/sumac/switch.toml").unwrap();
        let hop = wiring.hop(Ipv4Addr::new(10, 77, 0, 3), 48700).unwrap();
        assert_eq!(
            (hop.ifindex, hop.port, hop.mac, hop.aggregator_mac),
            (1, 48700, [2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 1])
        );
        assert_eq!(
            (Ipv4Addr::from_bits(hop.ip), Ipv4Addr::from_bits(hop.aggregator_ip)),
            ([10, 77, 0, 3].into(), [10, 77, 0, 1].into())
        );
        let missing = wiring.hop(Ipv4Addr::new(10, 77, 0, 4), 48700).unwrap_err();
        let advice =
            r#"add it to the hosts of its port in /etc/sumac/switch.toml: { ip = "10.77.0.4", mac = "..." }"#;
        assert_eq!(missing, advice);
        let tables: Vec<_> = wiring.entries().iter().map(|entry| entry.table).collect();
        assert_eq!(tables, ["hosts", "hosts", "own", "own"]);
        assert_eq!(wiring.program, Sizes::default());
    }

    #[test]
    fn what_no_switch_has_is_refused() {
        let table = [
            ("number = 2", "number = 1", "port 1: give each number below 512 once"),
            ("number = 2", "number = 512", "port 512"),
            ("10.77.0.3", "10.77.0.2", "host 10.77.0.2 is listed twice"),
            ("10.77.1.1", "10.77.0.1", ""),
            ("mac = '02:00:00:00:00:03'", "mac = '02:00'", "`02:00` is no MAC address"),
            ("number = 2", "nubmer = 2", "nubmer"),
        ];
        for (from, to, expected) in table {
            let refused = Wiring::parse(&FILE.replace(from, to), "switch.toml");
            match refused {
                Err(error) => {
                    assert!(!expected.is_empty() && error.to_string().contains(expected), "{to}: {error}");
                }
                Ok(_) => assert_eq!(expected, "", "{to}"),
            }
        }
        for (sizes, expected) in [
            ("shards = 3", "1, 2 or 4 shards"),
            ("elements = 257", "adds 1 to 256 of a packet"),
            ("slot_timeout_ms = 1000", "slot_timeout_ms"),
        ] {
            let error = Wiring::parse(&format!("[program]\n{sizes}\n{FILE}"), "switch.toml").unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let two =
            FILE.replacen("10.77.1.1", "10.77.0.1", 1).replacen("00:00:01'\n    ", "00:00:09'\n    ", 1);
        let error = Wiring::parse(&two, "switch.toml").unwrap_err();
        assert!(error.to_string().contains("has two MAC addresses"), "{error}");
    }

    #[test]
    fn the_program_decides_about_sizes_and_pipes() {
        let mut wiring = Wiring::parse(&FILE.replace("number = 2", "number = 132"), "switch.toml").unwrap();
        let program = Compiled {
            shards: 4,
            static_slots: 8,
            dynamic_slots: 0,
            blocks: 1,
            bounds_loss: false,
            slots_pipes: vec![2],
            front_pipe: Some(0),
        };
        wiring.fit(&program).unwrap();
        assert_eq!(
            wiring.program,
            Sizes {
                shards: 4,
                static_slots: 8,
                dynamic_slots: 0,
                blocks: 1,
                elements: 64,
                bounds_loss: false,
                ..Sizes::default()
            }
        );
        for (number, has_bounds) in [(2, true), (132, false)] {
            let file = FILE.replace("number = 2", &format!("number = {number}"));
            let mut wiring = Wiring::parse(&file, "switch.toml").unwrap();
            wiring.fit(&Compiled { bounds_loss: true, ..program.clone() }).unwrap();
            assert_eq!(wiring.program.bounds_loss, has_bounds, "port {number}");
        }
        let error = wiring.fit(&Compiled { slots_pipes: vec![1], ..program.clone() }).unwrap_err();
        assert!(error.to_string().starts_with("switch.toml: port 132 is of pipe 1"), "{error}");
        let mut other =
            Wiring::parse(&format!("[program]\nstatic_slots = 9\n{FILE}"), "switch.toml").unwrap();
        let error = other.fit(&program).unwrap_err().to_string();
        assert!(error.starts_with("switch.toml: [program] has static_slots = 9"), "{error}");
    }
}
