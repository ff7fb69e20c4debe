//! `ways.p4`: the port of each host, for packets that are not the aggregator's.

use super::numbers::mac;
use crate::target::Entry;

pub fn entry(host: [u8; 6], port: u32) -> Entry {
    Entry::new("hosts", "forward").exact("mac", mac(host)).parameter("port", port)
}
