//! A control plane without an aggregator: workers of dynamic jobs send to their parameter hosts.

use std::net::Ipv4Addr;

use sumac_wire::{CLASSES, DEFAULT_BASE_PORT, MAX_LANES, PAGE_ELEMENTS};

use crate::plane::{DataPlane, Installed, JobInstall, KnownJob, PlaneError, PlaneInfo, PlaneKind, TakenOver};

/// Adds nothing, and limits nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDataPlane;

impl DataPlane for NoDataPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        Ok(PlaneInfo {
            kind: PlaneKind::None,
            slots: 0,
            max_elements: PAGE_ELEMENTS as u16,
            narrowest: None,
            base_port: DEFAULT_BASE_PORT,
            shards: MAX_LANES as u16 / CLASSES,
            dynamic_slots: 0,
            address: None,
            kept: Vec::new(),
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        Ok(TakenOver { jobs: known.iter().map(|known| known.job).collect(), last_epochs: Vec::new() })
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        let aggregator_ips = vec![Ipv4Addr::UNSPECIFIED; job.workers.len()];
        Ok(Installed { aggregator_ips, ..Installed::default() })
    }

    fn resize(&self, _: u16, _: u32, _: &str) -> Result<(), PlaneError> {
        Ok(())
    }

    fn remove(&self, _: u16) -> Result<(), PlaneError> {
        Ok(())
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        Ok(0)
    }
}
