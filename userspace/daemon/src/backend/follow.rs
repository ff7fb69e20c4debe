//! The name and the addresses of the interface of the XDP backend, which may change while it stays.

use std::io;
use std::net::Ipv4Addr;
use std::sync::PoisonError;

use nix::errno::Errno;
use sumac_datapath::Identity;
use sumac_loader::Interface;

use super::setup::data_path;
use super::{Backend, BackendError};
use crate::path;

/// The outcome of a look at the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Followed {
    Same,
    /// Packets have another address from here on. Jobs with the former one end, for this reason.
    Readdressed(String),
    /// It has no address that packets could come from, for this reason.
    NoAddress(String),
    /// It was removed.
    Gone,
}

impl Backend {
    /// Follows the interface, by its index. It may wait for ARP when its address is gone.
    ///
    /// # Errors
    /// The kernel's, when the look-up fails, and the interface may be there.
    pub(crate) fn follow(&self) -> io::Result<Followed> {
        let Some((name, index)) = self.interface() else { return Ok(Followed::Same) };
        let interface = match Interface::by_index(index) {
            Ok(interface) => interface,
            Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => return Ok(Followed::Gone),
            Err(error) => return Err(error),
        };
        if interface.name != name {
            self.rename(&name, &interface.name);
        }
        let local = self.local();
        let mac = interface.mac().unwrap_or(local.mac);
        if mac != local.mac {
            let address = &interface.address;
            tracing::warn!(interface = interface.name, ?address, "the interface has another MAC address");
        }
        let is_there = path::interface_of(local.ip).is_some();
        let next = if is_there { Ok(local.ip) } else { self.next_address(&interface.name, local.ip) };
        let ip = *next.as_ref().unwrap_or(&local.ip);
        if (ip, mac) != (local.ip, local.mac) || interface.name != name {
            if ip != local.ip && self.udp_beside.get().is_some() {
                tracing::warn!(
                    "jobs measure AF_XDP alone from here on: the UDP sockets beside it have the former \
                    address; restart the daemon to measure both"
                );
            }
            let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
            (local.ip, local.mac) = (ip, mac);
            self.datapath().set_identity(&Identity { name: interface.name.clone(), mac, ip });
        }
        Ok(match next {
            Ok(ip) if ip == local.ip => Followed::Same,
            Ok(ip) => Followed::Readdressed(format!(
                "{} of this host's data path is gone; packets come from {ip} on {} from here on",
                local.ip, interface.name
            )),
            Err(reason) => Followed::NoAddress(reason),
        })
    }

    fn rename(&self, former: &str, present: &str) {
        let Some(mut admitted) = self.admitted() else { return };
        match admitted.program.rename(present) {
            Ok(()) => tracing::warn!(former, interface = present, "the interface has another name"),
            Err(error) => {
                tracing::error!(former, interface = present, %error, "cannot follow the interface's name");
            }
        }
    }

    /// Returns the address that takes the place of one that is gone.
    fn next_address(&self, interface: &str, former: Ipv4Addr) -> Result<Ipv4Addr, String> {
        let gone = format!("{former}, which this host's packets came from, is gone");
        if self.config.address.is_some() {
            return Err(format!(
                "{gone}: `address` of the configuration names it; give it the present one, or leave it out"
            ));
        }
        match data_path(&self.config, &self.control) {
            Ok((ifname, ip)) if ifname == interface => Ok(ip),
            Ok((ifname, ip)) => Err(format!(
                "{gone}, and the route to the control plane leads through {ifname} ({ip}): restart the \
                daemon to use that"
            )),
            Err(BackendError::NotYet(reason) | BackendError::Xdp(reason)) => Err(format!("{gone}: {reason}")),
            Err(error) => Err(format!("{gone}: {error}")),
        }
    }
}
