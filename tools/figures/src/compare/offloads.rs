//! The veths' offloads for what goes over the kernel's sockets: other libraries' TCP, and Sumac's UDP. The
//! frames of AF_XDP never exceed the MTU.

use anyhow::Result;
use serde::Serialize;

use sumac_lab::cable::{FAR, NEAR};
use sumac_lab::namespace::Namespace;
use sumac_lab::{Lab, Topology};

/// The veths' offloads for TCP and UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TcpOffloads {
    /// None: frames of the MTU's size, received one by one
    None,
    /// Frames of the MTU's size, joined again by the hosts that receive or route them
    #[default]
    Gro,
    /// Segments of up to 64 KB that nobody cuts: faster than any wire, as no wire carries them
    All,
}

impl TcpOffloads {
    /// Whether frames are larger than a cable may see that loses them one by one. One with a rate counts
    /// their bytes.
    pub fn exceed_the_mtu(self) -> bool {
        self == TcpOffloads::All
    }

    /// The frames that the kernel's data are in.
    pub fn frames(self) -> &'static str {
        match self {
            TcpOffloads::None => "MTU-sized frames, no offloads",
            TcpOffloads::Gro => "MTU-sized frames, GRO",
            TcpOffloads::All => "64 KB super-frames",
        }
    }

    /// Sets the veths of workers, aggregators and cables. What labs come with, and what Sumac needs, is
    /// `Gro`.
    pub fn set(self, lab: &Lab) -> Result<()> {
        if lab.spec().topology == Topology::Loopback {
            // It has no wire to cut frames for.
            return Ok(());
        }
        for rank in 0..lab.spec().workers {
            self.set_on(lab, lab.worker(rank), lab.worker_interface())?;
        }
        for port in lab.spec().aggregator_ports() {
            self.set_on(lab, lab.aggregator(), &port)?;
        }
        for rack in lab.racks() {
            for port in lab.spec().rack_ports().iter().map(String::as_str).chain([lab.uplink()]) {
                self.set_on(lab, rack, port)?;
            }
        }
        for cable in lab.cables() {
            for port in [NEAR, FAR] {
                self.set_on(lab, cable.namespace(), port)?;
            }
        }
        Ok(())
    }

    fn set_on(self, lab: &Lab, host: &Namespace, interface: &str) -> Result<()> {
        let whole = if self.exceed_the_mtu() { "on" } else { "off" };
        host.offload(interface, &["tx", whole, "tso", whole, "gso", whole, "gro", "off"])?;
        if self == TcpOffloads::None { Ok(()) } else { host.take_redirects(interface, lab.spec().napi) }
    }
}
