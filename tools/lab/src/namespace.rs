//! A network namespace and the commands that configure it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::spec::Napi;

/// A named network namespace, or this process's own. The value is only a name: creating and deleting are
/// calls of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    name: String,
    is_own: bool,
}

impl Namespace {
    /// The namespace of this name, whether it exists or not.
    pub fn named(name: impl Into<String>) -> Namespace {
        Namespace { name: name.into(), is_own: false }
    }

    /// The namespace of this process, under a name for its programs.
    pub fn own(name: impl Into<String>) -> Namespace {
        Namespace { name: name.into(), is_own: true }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path at which it is mounted.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    /// Creates it, without IPv6, whose neighbour discovery would add frames of its own.
    pub fn create(&self) -> Result<()> {
        command::output(Command::new("ip").args(["netns", "add", &self.name]))?;
        self.sysctl("net.ipv6.conf.all.disable_ipv6=1\nnet.ipv6.conf.default.disable_ipv6=1\n")?;
        self.ip(&["link set dev lo up".into()])
    }

    /// Sets kernel parameters of its network, `name=value` a line.
    pub fn sysctl(&self, settings: &str) -> Result<()> {
        command::output_of(self.command("sysctl").args(["-q", "-p", "-"]), settings).map(|_| ())
    }

    /// Deletes it, if it exists, and with it every interface in it.
    pub fn delete(&self) -> Result<()> {
        if !self.exists() {
            return Ok(());
        }
        command::output(Command::new("ip").args(["netns", "del", &self.name])).map(|_| ())
    }

    /// A command that runs `program` in this network namespace and in the mounts of ours, so that bpffs is
    /// seen.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if self.is_own {
            return Command::new(program);
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    /// Keeps the firewall's hooks away from bridged frames: where br_netfilter is loaded they parse them as
    /// IP, and drop what is broken, which a wire does not.
    pub(crate) fn bridge_like_a_wire(&self) -> Result<()> {
        let settings = "net.bridge.bridge-nf-call-iptables=0\nnet.bridge.bridge-nf-call-ip6tables=0\n\
                        net.bridge.bridge-nf-call-arptables=0\n";
        // Ignoring unknown names: without br_netfilter there are none of these.
        command::output_of(self.command("sysctl").args(["-q", "-e", "-p", "-"]), settings).map(|_| ())
    }

    pub fn ip(&self, lines: &[String]) -> Result<()> {
        batch(self.command("ip"), lines)
    }

    pub fn tc(&self, lines: &[String]) -> Result<()> {
        batch(self.command("tc"), lines)
    }

    pub fn nft(&self, script: &str) -> Result<()> {
        command::output_of(self.command("nft").args(["-f", "-"]), script).map(|_| ())
    }

    /// Makes an interface carry what a wire carries, and brings it up.
    ///
    /// Segments and checksums are made by the sender, not left to the receiver. Received frames stay in
    /// order, as on a wire: `rps_cpus` queues those of a queue to one CPU, and not to where the sender or a
    /// shaper's timer ran. Were it to name several CPUs, only frames of one flow would stay in order, and
    /// Sumac's flows are many.
    pub fn wire_like(&self, interface: &str, link: Link) -> Result<()> {
        self.offload(interface, &["tx", "off", "tso", "off", "gso", "off", "gro", "off"])?;
        let line = |queue: u16| {
            let mask = cpu_mask(link.cpu + usize::from(queue));
            format!("echo {mask} > /sys/class/net/{interface}/queues/rx-{queue}/rps_cpus")
        };
        self.sysfs(&(0..link.queues).map(line).collect::<Vec<_>>().join(" && "))?;
        self.ip(&[format!("link set dev {interface} up")])
    }

    /// Gives a veth a NAPI, without which frames that XDP redirects to it vanish: GRO does that. The kernel
    /// notes that its peer may be redirected to only when GRO is switched on while both are up. Only an
    /// interface that has a NAPI can be told where to run it.
    pub fn take_redirects(&self, interface: &str, napi: Napi) -> Result<()> {
        self.offload(interface, &["gro", "on"])?;
        let is_threaded = u8::from(napi == Napi::Threaded);
        let file = format!("/sys/class/net/{interface}/threaded");
        let set = self.sysfs(&format!("[ ! -e {file} ] && echo absent || echo {is_threaded} > {file}"))?;
        if napi == Napi::Threaded && !set.is_empty() {
            eprintln!("sumac-lab: {interface}: this kernel has no NAPI threads (Linux 5.12): --napi softirq");
        }
        Ok(())
    }

    /// Runs a shell script where sysfs shows this namespace's interfaces: it shows those of the namespace
    /// that it was mounted in, so this needs a mount of its own.
    fn sysfs(&self, script: &str) -> Result<String> {
        command::output(Command::new("ip").args(["netns", "exec", &self.name, "sh", "-c", script]))
    }

    /// Switches features of an interface, as `ethtool -K` names them.
    pub fn offload(&self, interface: &str, features: &[&str]) -> Result<()> {
        command::output(self.command("ethtool").args(["-K", interface]).args(features)).map(|_| ())
    }

    pub fn mac(&self, interface: &str) -> Result<[u8; 6]> {
        let mut show = self.command("ip");
        show.args(["-json", "link", "show", "dev", interface]);
        let json = command::json(&mut show)?;
        let text = json[0]["address"].as_str().unwrap_or_default();
        let why = || command::not_understood(&show, &format!("{text:?} is not a MAC address"));
        parse_mac(text).ok_or_else(why)
    }

    /// Processes that are in it.
    pub fn pids(&self) -> Result<Vec<u32>> {
        let text = command::output(Command::new("ip").args(["netns", "pids", &self.name]))?;
        Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }
}

fn batch(mut program: Command, lines: &[String]) -> Result<()> {
    let input = lines.join("\n") + "\n";
    command::output_of(program.args(["-batch", "-"]), &input).map(|_| ())
}

/// The properties of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// MTU of both ends.
    pub mtu: u32,
    /// Queues of both ends, in each direction. A frame that is sent from a queue arrives in the one of the
    /// same number.
    pub queues: u16,
    /// The context of receive processing, at both ends.
    pub napi: Napi,
    /// To which CPU, of those that there are, the first queue's received frames go; the others' go to the
    /// next ones.
    pub cpu: usize,
}

impl Link {
    /// The options of `ip link add` for one end.
    pub(crate) fn arguments(self) -> String {
        let Link { mtu, queues, .. } = self;
        format!("mtu {mtu} numtxqueues {queues} numrxqueues {queues}")
    }
}

/// Joins two namespaces by a pair of veths.
pub(crate) fn veth(a: (&Namespace, &str), b: (&Namespace, &str), link: Link) -> Result<()> {
    let end = |(host, interface): (&Namespace, &str)| {
        format!("name {interface} {} netns {}", link.arguments(), host.name())
    };
    let line = format!("link add {} type veth peer {}", end(a), end(b));
    command::output(Command::new("ip").args(line.split(' ')))?;
    for (host, interface) in [a, b] {
        host.wire_like(interface, link)?;
    }
    for (host, interface) in [a, b] {
        host.take_redirects(interface, link.napi)?;
    }
    Ok(())
}

/// One of the first 32 CPUs as the kernel's bitmap.
fn cpu_mask(cpu: usize) -> String {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(32);
    format!("{:x}", 1u64 << (cpu % cpus))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let mut mac = [0; 6];
    for byte in &mut mac {
        *byte = bytes.next()?.ok()?;
    }
    bytes.next().is_none().then_some(mac)
}

/// Every named network namespace of this machine.
pub fn all() -> io::Result<Vec<String>> {
    match std::fs::read_dir("/run/netns") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs() {
        assert_eq!(parse_mac("02:00:00:00:00:ff"), Some([2, 0, 0, 0, 0, 255]));
        for text in ["", "02:00", "02:00:00:00:00:00:00", "zz:00:00:00:00:00"] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
