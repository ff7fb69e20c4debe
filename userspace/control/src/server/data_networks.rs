//! The addresses that packets may be sent to for a member: that of its control connection, and those in
//! networks that the administrator names.

use std::{net::Ipv4Addr, str::FromStr};

use thiserror::Error;

/// A network in CIDR notation, `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataNetwork {
    address: Ipv4Addr,
    prefix_len: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DataNetworkError {
    #[error("`{given}` is no IPv4 network: give ADDRESS/PREFIX, as 10.1.0.0/16")]
    Form { given: String },
    #[error("`{given}` has bits beyond its prefix: give {network}/{prefix_len}")]
    HostBits { given: String, network: Ipv4Addr, prefix_len: u32 },
}

impl DataNetwork {
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(u32::BITS - self.prefix_len).unwrap_or(0)
    }

    /// Whether it is the address of a host in this network: no broadcast or multicast address.
    fn has_host(self, address: Ipv4Addr) -> bool {
        let host_bits = address.to_bits() & !self.mask();
        let is_broadcast = self.prefix_len < 31 && host_bits == !self.mask();
        address.to_bits() & self.mask() == self.address.to_bits()
            && !(is_broadcast || address.is_broadcast() || address.is_multicast())
    }
}

impl FromStr for DataNetwork {
    type Err = DataNetworkError;

    fn from_str(given: &str) -> Result<DataNetwork, DataNetworkError> {
        let parsed = given.split_once('/').and_then(|(address, prefix_len)| {
            let prefix_len = prefix_len.parse().ok().filter(|len| *len <= u32::BITS)?;
            Some(DataNetwork { address: address.parse().ok()?, prefix_len })
        });
        let network = parsed.ok_or_else(|| DataNetworkError::Form { given: given.into() })?;
        let masked = Ipv4Addr::from_bits(network.address.to_bits() & network.mask());
        if masked == network.address {
            return Ok(network);
        }
        let prefix_len = network.prefix_len;
        Err(DataNetworkError::HostBits { given: given.into(), network: masked, prefix_len })
    }
}

/// A member states an address that is not its own as far as is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "packets are to be sent to {stated}, but the control connection comes from {connection}: connect to the \
     control plane from {stated}, set `address` in the daemon's configuration to {connection}, or allow the \
     network of {stated} with `sumac-agg serve --data-network NETWORK`"
)]
pub(super) struct ForeignAddress {
    stated: Ipv4Addr,
    connection: Ipv4Addr,
}

/// Returns the address that packets for a member are sent to. `connection`: the source of its control
/// connection. Anyone who has a secret could otherwise have packets sent to a host that has no part in the
/// job.
pub(super) fn data_address(
    stated: Option<Ipv4Addr>,
    connection: Ipv4Addr,
    allowed: &[DataNetwork],
) -> Result<Ipv4Addr, ForeignAddress> {
    let stated = stated.filter(|stated| !stated.is_unspecified()).unwrap_or(connection);
    let is_own = stated == connection || (stated.is_loopback() && connection.is_loopback());
    if is_own || allowed.iter().any(|network| network.has_host(stated)) {
        return Ok(stated);
    }
    Err(ForeignAddress { stated, connection })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_that_of_the_connection_or_in_an_allowed_network() {
        let allowed: Vec<DataNetwork> = ["10.1.0.0/16", "10.2.0.4/31"].map(|it| it.parse().unwrap()).into();
        let cases = [
            ("192.168.0.5", "192.168.0.5", true),
            ("0.0.0.0", "192.168.0.5", true),
            ("192.168.0.6", "192.168.0.5", false),
            ("127.0.0.98", "127.0.0.1", true),
            ("127.0.0.98", "192.168.0.5", false),
            ("192.168.0.5", "127.0.0.1", false),
            ("10.1.200.1", "192.168.0.5", true),
            ("10.1.255.255", "192.168.0.5", false),
            ("10.2.0.5", "192.168.0.5", true),
            ("10.2.0.6", "192.168.0.5", false),
        ];
        for (stated, connection, is_allowed) in cases {
            let found = data_address(Some(ip(stated)), ip(connection), &allowed);
            assert_eq!(found.is_ok(), is_allowed, "{stated} from {connection}: {found:?}");
        }
        let all = ["0.0.0.0/0".parse().unwrap()];
        for (stated, is_allowed) in [("8.8.8.8", true), ("239.77.0.1", false), ("255.255.255.255", false)] {
            let found = data_address(Some(ip(stated)), ip("10.0.0.1"), &all);
            assert_eq!(found.is_ok(), is_allowed, "{stated}");
        }
        assert_eq!(data_address(None, ip("10.0.0.1"), &[]), Ok(ip("10.0.0.1")));
    }

    #[test]
    fn what_is_no_network_is_refused_with_the_form() {
        for given in ["10.1.0.0", "10.1.0.0/33", "10.1/16", "ten/8", "10.0.0.0/", ""] {
            let refused = given.parse::<DataNetwork>().unwrap_err().to_string();
            assert!(refused.contains("10.1.0.0/16"), "{given}: {refused}");
        }
        let refused = "10.1.0.5/16".parse::<DataNetwork>().unwrap_err().to_string();
        assert!(refused.ends_with("give 10.1.0.0/16"), "{refused}");
    }
}
