//! The P4 program on the behavioural model of a switch (BMv2): one model for each aggregator's host.
//!
//! `simple_switch_grpc` reads all frames of the host's interfaces from packet sockets, beside the kernel, and
//! is programmed by `sumac-agg serve --plane p4runtime` in the same namespace. The kernel keeps the
//! addresses: it answers ARP, speaks TCP for the control plane, and routes what is not for the aggregator, as
//! the processor of a switch does.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use sumac_wire::{DEFAULT_BASE_PORT, tos::QUEUES};

use super::aggregators::listens;
use super::{Aggregator, Deployment, START_LIMIT, write};
use crate::checkout;
use crate::command;
use crate::namespace::Namespace;

/// The model's program, found on PATH.
const MODEL: &str = "simple_switch_grpc";
/// Slots of each shard that dynamic jobs share: DYNAMIC_SLOTS of p4/common/sizes.p4.
pub const MODEL_SHARED_SLOTS: u32 = 2048;

/// Most elements in a chunk of a static job: all blocks of the program.
const ELEMENTS: u16 = 256;

/// TCP ports of the model in its namespace: of P4Runtime, and of Thrift.
const P4RUNTIME_PORT: u16 = 9559;
const THRIFT_PORT: u16 = 9090;

/// Packets that a queue of the model takes. By default it drops what is behind the 64th. A chunk whose last
/// packet is dropped on its way to its second pass is never concluded.
const QUEUE_DEPTH: u32 = 1 << 16;

/// The compiled program, from `make p4`.
#[derive(Clone, Debug)]
pub struct Pipeline {
    json: PathBuf,
    p4info: PathBuf,
}

impl Pipeline {
    /// The program in `SUMAC_P4_DIR`, or in the checkout's `target/p4/bmv2`.
    ///
    /// # Errors
    /// When the model is not on PATH, or the program is not compiled.
    pub fn find() -> Result<Pipeline> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&folders).any(|folder| folder.join(MODEL).is_file()) {
            bail!("no {MODEL} on PATH; docs/p4.md says how to get the behavioural model");
        }
        let folder = match std::env::var_os("SUMAC_P4_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => checkout::root().join("target/p4/bmv2"),
        };
        let [json, p4info] = ["sumac.json", "sumac.p4info.bin"].map(|name| folder.join(name));
        if !json.is_file() || !p4info.is_file() {
            bail!(
                "no compiled P4 program in {}; run `make p4`, or name its folder in SUMAC_P4_DIR",
                folder.display()
            );
        }
        Ok(Pipeline { json, p4info })
    }
}

impl Deployment<'_> {
    /// Starts the model on each aggregator's host, if aggregators are that.
    pub(super) fn start_switches(&mut self) -> Result<()> {
        if self.options.aggregator() != Aggregator::Bmv2 {
            return Ok(());
        }
        Pipeline::find()?;
        (0..=usize::from(self.lab.spec().racks)).try_for_each(|place| self.start_switch(place))
    }

    /// Starts the model of the aggregator at this place, without a program: its control plane loads that.
    fn start_switch(&mut self, place: usize) -> Result<()> {
        let Some(host) = self.aggregator_hosts().nth(place) else { bail!("no aggregator at place {place}") };
        keep_packets_from_the_kernel(host, self.lab.spec().queues)?;
        let notifications =
            format!("ipc://{}", self.lab.folder().join(format!("switch{place}.ipc")).display());
        let mut model = Command::new(MODEL);
        model.args(["--no-p4", "--log-console", "-L", "warn", "--notifications-addr", &notifications]);
        model.args(["--thrift-port", &THRIFT_PORT.to_string()]);
        for (number, name) in numbered(&self.ports_of(host)) {
            model.args(["-i", &format!("{number}@{name}")]);
        }
        model.args(["--", "--grpc-server-addr", &address(), "--priority-queues", &QUEUES.to_string()]);
        let switch =
            self.switches[place].insert(self.lab.start(host, &format!("switch{place}"), &mut model)?);
        switch.wait_until("P4Runtime", START_LIMIT, || {
            listens(host, P4RUNTIME_PORT) && listens(host, THRIFT_PORT)
        })?;
        deepen_queues(host)
    }
}

/// The kernel sees the frames of the packet sockets too. It has no socket for the aggregator's packets, and
/// would answer them with ICMP port unreachable.
fn keep_packets_from_the_kernel(host: &Namespace, shards: u16) -> Result<()> {
    let last = DEFAULT_BASE_PORT + shards.max(1) - 1;
    host.nft(&format!(
        "table inet sumac {{
            chain input {{
                type filter hook input priority filter
                udp dport {DEFAULT_BASE_PORT}-{last} drop
            }}
        }}
"
    ))
}

/// Sets the depth of all queues, which only the model's Thrift service can: the call
/// `set_all_egress_queue_depths(1: i32)` of its service `simple_switch`, in Thrift's binary protocol. The
/// shell speaks to it in the model's namespace.
fn deepen_queues(host: &Namespace) -> Result<()> {
    let method = "simple_switch:set_all_egress_queue_depths";
    let mut call = vec![0x80, 1, 0, 1];
    call.extend((method.len() as u32).to_be_bytes());
    call.extend(method.bytes());
    // The number of the call, then field 1 of type 8 (i32), and the end of the arguments.
    call.extend([0, 0, 0, 0, 8, 0, 1]);
    call.extend(QUEUE_DEPTH.to_be_bytes());
    call.push(0);
    let bytes: String = call.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    // The reply begins with version, kind (2: of a call that succeeded), and the method's name.
    let talk = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{THRIFT_PORT} && printf '{bytes}' >&3 && timeout 30 head -c 4 <&3 | od \
        -A n -t x1"
    );
    let reply = command::output(host.command("bash").args(["-c", &talk]))?;
    ensure!(
        reply.trim() == "80 01 00 02",
        "the behavioural model does not set the depth of its queues: {reply}"
    );
    Ok(())
}

/// Port numbers of interfaces: from 1, in their order.
pub(super) fn numbered(interfaces: &[String]) -> impl Iterator<Item = (u16, &String)> {
    (1..).zip(interfaces)
}

fn address() -> String {
    format!("127.0.0.1:{P4RUNTIME_PORT}")
}

impl Deployment<'_> {
    /// Adds the options of the control plane of the switch at this place.
    pub(super) fn serve_switch(&self, place: usize, host: &Namespace, serve: &mut Command) -> Result<()> {
        let Pipeline { json, p4info } = Pipeline::find()?;
        let file = self.lab.folder().join(format!("switch{place}.toml"));
        write(&file, &toml::to_string(&self.wiring(host)?)?)?;
        serve.args(["--plane", "p4runtime", "--switch-address", &address()]);
        serve.arg("--pipeline").arg(json).arg("--p4info").arg(p4info).arg("--switch").arg(file);
        Ok(())
    }

    /// The switch of an aggregator's host as its control plane is told: its ports, and the neighbours behind
    /// them.
    fn wiring(&self, host: &Namespace) -> Result<Wiring> {
        let neighbours = self.neighbours(host);
        let interfaces = self.ports_of(host);
        let port = |(number, name): (u16, &String)| {
            let behind = || neighbours.iter().filter(|neighbour| neighbour.port == *name);
            let Some(first) = behind().next() else { bail!("nobody is behind {name} of {}", host.name()) };
            let hosts = behind().map(|Neighbour { host, interface, ip, .. }| {
                Ok(WiredHost { ip: *ip, mac: text(host.mac(interface)?) })
            });
            Ok(WiredPort {
                number,
                ip: first.own,
                mac: text(host.mac(name)?),
                hosts: hosts.collect::<Result<_>>()?,
            })
        };
        Ok(Wiring {
            program: WiredProgram { elements: ELEMENTS },
            ports: numbered(&interfaces).map(port).collect::<Result<_>>()?,
        })
    }

    /// Returns the hosts behind the ports of an aggregator's host.
    fn neighbours(&self, host: &Namespace) -> Vec<Neighbour<'_>> {
        let (lab, spec) = (self.lab, self.lab.spec());
        let leaf = lab.worker_interface();
        let rack = lab.racks().iter().position(|rack| rack.name() == host.name());
        let here = |rank: &u16| spec.rack_of(*rank).map(usize::from) == rack;
        let worker = |rank: u16| Neighbour {
            port: spec.port_of(rank),
            own: spec.aggregator_ip(rank),
            host: lab.worker(rank),
            interface: leaf.to_owned(),
            ip: spec.worker_ip(rank),
        };
        let mut found: Vec<_> = (0..spec.workers).filter(here).map(worker).collect();
        if let Some(rack) = rack {
            let number = rack as u16;
            found.push(Neighbour {
                port: lab.uplink().to_owned(),
                own: spec.uplink_ip(number),
                host: lab.aggregator(),
                interface: format!("port{rack}"),
                ip: spec.root_ip(number),
            });
            return found;
        }
        found.extend((0..).zip(lab.racks()).map(|(number, rack)| Neighbour {
            port: format!("port{number}"),
            own: spec.root_ip(number),
            host: rack,
            interface: lab.uplink().to_owned(),
            ip: spec.uplink_ip(number),
        }));
        found.extend((0..).zip(lab.parameter_hosts()).map(|(number, host)| Neighbour {
            port: spec.host_port(number),
            own: spec.host_gateway(number),
            host,
            interface: leaf.to_owned(),
            ip: spec.host_ip(number),
        }));
        found
    }
}

/// A host behind a port of an aggregator's.
struct Neighbour<'a> {
    port: String,
    /// The aggregator's address there.
    own: Ipv4Addr,
    host: &'a Namespace,
    interface: String,
    ip: Ipv4Addr,
}

/// The file of `sumac-agg serve --switch`.
#[derive(Serialize)]
struct Wiring {
    program: WiredProgram,
    ports: Vec<WiredPort>,
}

#[derive(Serialize)]
struct WiredProgram {
    elements: u16,
}

#[derive(Serialize)]
struct WiredPort {
    number: u16,
    ip: Ipv4Addr,
    mac: String,
    hosts: Vec<WiredHost>,
}

#[derive(Serialize)]
struct WiredHost {
    ip: Ipv4Addr,
    mac: String,
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The options that name the switch's control plane to other verbs.
pub(super) fn of_control_plane() -> [String; 1] {
    ["--switch".to_owned()]
}
