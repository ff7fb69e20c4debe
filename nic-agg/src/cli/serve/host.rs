//! The options of the host plane, and its start.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::bail;
use sumac_agg::pool::{DEFAULT_DYNAMIC_SLOTS, DEFAULT_SLOT_TIMEOUT, DEFAULT_SLOTS};
use sumac_agg_host::HostDataPlane;
use sumac_wire::{DEFAULT_BASE_PORT, MAX_ELEMENTS};

use super::args::Args;

impl Args {
    pub(super) fn refuse_host_options(&self) -> anyhow::Result<()> {
        let given = [
            ("--slots", self.slots.is_some()),
            ("--dynamic-slots", self.dynamic_slots.is_some()),
            ("--slot-timeout", self.slot_timeout.is_some()),
            ("--elements", self.elements.is_some()),
            ("--base-port", self.base_port.is_some()),
            ("--shards", self.shards.is_some()),
            ("--data-ip", self.data_ip.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                bail!(
                    "{option} is for --plane host; the eBPF aggregator is made by `sumac-agg attach`, and a \
                    switch's program is described in [program] of --switch"
                )
            }
            None => Ok(()),
        }
    }

    pub(super) fn host_plane(&self) -> anyhow::Result<HostDataPlane> {
        let elements = self.elements.unwrap_or(MAX_ELEMENTS as u16);
        if elements == 0 || usize::from(elements) > MAX_ELEMENTS {
            bail!("--elements {elements}: give 1 to {MAX_ELEMENTS}");
        }
        let ip = self.data_ip.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let slots = self.slots.unwrap_or(DEFAULT_SLOTS);
        if slots == 0 {
            bail!("--slots 0: no job could ever start; give at least 1");
        }
        let port = self.base_port.unwrap_or(DEFAULT_BASE_PORT);
        let plane = HostDataPlane::start(slots, elements, self.shards.unwrap_or(1), ip, port)?;
        let timeout = self.slot_timeout.map_or(DEFAULT_SLOT_TIMEOUT, |ms| Duration::from_millis(ms.into()));
        Ok(plane.with_dynamic(self.dynamic_slots.unwrap_or(DEFAULT_DYNAMIC_SLOTS), timeout)?)
    }
}
