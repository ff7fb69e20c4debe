//! The handle that `listen` writes and the ranks exchange: name of the job, and daemon of the listener.

use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::abi::HANDLE_BYTES;
use crate::error::PluginError;

/// The first bytes of a handle, with the version of its format.
const MAGIC: [u8; 8] = *b"sumac\0\0\x01";

/// A listener's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Random: the names of the connection's jobs derive from it.
    pub(crate) id: [u8; 16],
    /// The listener's daemon, see [`daemon_id`].
    pub(crate) daemon: u64,
    /// Whether the listener's process had no collective communicator yet.
    pub(crate) is_first: bool,
    /// The address of a listener that takes TCP connections.
    pub(crate) tcp: Option<SocketAddr>,
}

impl Address {
    /// A new address at the daemon with this socket.
    pub(crate) fn new(socket: &Path) -> Result<Address, PluginError> {
        let mut id = [0; 16];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut id))
            .map_err(|error| PluginError::system(format!("cannot read /dev/urandom: {error}")))?;
        Ok(Address { id, daemon: daemon_id(socket)?, is_first: false, tcp: None })
    }

    /// The name of a job of this connection.
    pub(crate) fn job(&self, kind: &str) -> String {
        format!("nccl-{:032x}-{kind}", u128::from_be_bytes(self.id))
    }

    pub(crate) fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.id);
        bytes[24..32].copy_from_slice(&self.daemon.to_be_bytes());
        if let Some(SocketAddr::V4(tcp)) = self.tcp {
            bytes[32..36].copy_from_slice(&tcp.ip().octets());
            bytes[36..38].copy_from_slice(&tcp.port().to_be_bytes());
        }
        bytes[38] = u8::from(self.is_first);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HANDLE_BYTES]) -> Result<Address, PluginError> {
        let array = |from: usize| -> [u8; 8] { std::array::from_fn(|at| bytes[from + at]) };
        if array(0) != MAGIC {
            let message = "the handle is not one of this plugin, or of another version; use the same release \
                           on all hosts";
            return Err(PluginError::usage(message));
        }
        let ip = Ipv4Addr::new(bytes[32], bytes[33], bytes[34], bytes[35]);
        let port = u16::from_be_bytes([bytes[36], bytes[37]]);
        Ok(Address {
            id: std::array::from_fn(|at| bytes[8 + at]),
            daemon: u64::from_be_bytes(array(24)),
            is_first: bytes[38] != 0,
            tcp: (port != 0).then_some(SocketAddr::new(IpAddr::V4(ip), port)),
        })
    }
}

/// Identifies the daemon that listens at a socket: by the host's boot, and the socket's file. Two containers
/// that share the socket have the same.
pub(crate) fn daemon_id(socket: &Path) -> Result<u64, PluginError> {
    let of_file = |path: &Path, error| PluginError::system(format!("{}: {error}", path.display()));
    let file = fs::metadata(socket).map_err(|error| of_file(socket, error))?;
    let boot = Path::new("/proc/sys/kernel/random/boot_id");
    let boot = fs::read(boot).map_err(|error| of_file(boot, error))?;
    Ok(fnv(&[&boot, &file.dev().to_be_bytes(), &file.ino().to_be_bytes()]))
}

/// FNV-1a over all parts.
fn fnv(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the number of ranks at each daemon, from the daemons of all ranks in order; `None` if they differ,
/// or the ranks of a daemon do not follow each other.
pub(crate) fn ranks_per_daemon(daemons: &[u64]) -> Option<usize> {
    let first = daemons.iter().take_while(|daemon| Some(*daemon) == daemons.first()).count();
    let hosts: Vec<u64> = daemons.chunks(first.max(1)).map(|ranks| ranks[0]).collect();
    let is_regular = daemons.chunks(first.max(1)).all(|ranks| {
        let is_full = ranks.len() == first && ranks.iter().all(|daemon| *daemon == ranks[0]);
        is_full && hosts.iter().filter(|host| **host == ranks[0]).count() == 1
    });
    (is_regular && first > 0).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_decoded_as_it_was_encoded() {
        let address = Address { id: *b"0123456789abcdef", daemon: u64::MAX - 5, is_first: true, tcp: None };
        assert_eq!(Address::decode(&address.encode()).unwrap(), address);
        let tcp = Some("10.1.2.3:40000".parse().unwrap());
        let address = Address { tcp, is_first: false, ..address };
        assert_eq!(Address::decode(&address.encode()).unwrap(), address);
        assert_eq!(address.job("net"), "nccl-30313233343536373839616263646566-net");
        assert!(address.job("collective").len() <= 64);
    }

    #[test]
    fn another_handle_is_refused() {
        assert!(Address::decode(&[0; HANDLE_BYTES]).is_err());
        let mut bytes = Address { id: [1; 16], daemon: 1, is_first: false, tcp: None }.encode();
        bytes[7] = 2;
        assert!(Address::decode(&bytes).is_err());
    }

    #[test]
    fn ranks_are_counted_by_daemon_in_order() {
        for (daemons, expected) in [
            (vec![], None),
            (vec![1], Some(1)),
            (vec![1, 2, 3], Some(1)),
            (vec![1, 1, 1], Some(3)),
            (vec![1, 1, 2, 2], Some(2)),
            (vec![1, 1, 2], None),
            (vec![1, 2, 2], None),
            (vec![1, 2, 1], None),
            (vec![1, 1, 2, 2, 1, 1], None),
        ] {
            assert_eq!(ranks_per_daemon(&daemons), expected, "{daemons:?}");
        }
    }
}
