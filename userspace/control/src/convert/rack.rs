//! The messages between a root and the aggregators of its racks, or its parameter hosts.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::{dynamic, read_kind, write_kind};
use sumac_wire::MAX_JOBS;

use crate::{
    plane::{Installed, JobInstall, LastEpoch, Level, PlaneInfo, WorkerInstall},
    post::printable,
    rpc::{self, rack_order},
    seal::Key,
};

/// Writes what a plane is.
pub fn write_plane(info: &PlaneInfo, instance: u64) -> rpc::RackPlane {
    rpc::RackPlane {
        kind: write_kind(info.kind).into(),
        slots: info.slots,
        max_elements: info.max_elements.into(),
        narrowest: info.narrowest.as_deref().unwrap_or_default().into(),
        base_port: info.base_port.into(),
        shards: info.shards.into(),
        instance,
        dynamic_slots: info.dynamic_slots,
        address: info.address.map_or(0, Ipv4Addr::to_bits),
        kept: info.kept.iter().copied().map(u32::from).collect(),
    }
}

/// Longest name of a port that a rack tells, in bytes.
const PORT_LEN: usize = 64;

/// Reads what a plane is; `None` when a field is out of its range: what has nothing to give is no plane.
pub fn read_plane(plane: &rpc::RackPlane) -> Option<(u64, PlaneInfo)> {
    let info = PlaneInfo {
        kind: read_kind(plane.kind)?,
        slots: plane.slots,
        max_elements: plane.max_elements.try_into().ok()?,
        narrowest: Some(printable(&plane.narrowest, PORT_LEN))
            .filter(|port| !port.is_empty())
            .map(Into::into),
        base_port: plane.base_port.try_into().ok()?,
        shards: plane.shards.try_into().ok()?,
        dynamic_slots: plane.dynamic_slots,
        address: (plane.address != 0).then(|| Ipv4Addr::from_bits(plane.address)),
        kept: plane.kept.iter().take(MAX_JOBS).filter_map(|job| u16::try_from(*job).ok()).collect(),
    };
    let is_real = info.slots > 0 && info.max_elements > 0 && info.shards > 0 && info.base_port > 0;
    let has_ports = info.base_port.checked_add(info.shards.saturating_sub(1)).is_some();
    (is_real && has_ports).then_some((plane.instance, info))
}

/// Reads the incarnations that a rack remembers; those out of range are none.
pub fn read_epochs(epochs: &[rpc::LastEpoch]) -> Vec<LastEpoch> {
    let read = |last: &rpc::LastEpoch| {
        Some(LastEpoch { job: last.job.try_into().ok()?, epoch: last.epoch.try_into().ok()? })
    };
    epochs.iter().filter_map(read).collect()
}

/// Writes them.
pub fn write_epochs(epochs: &[LastEpoch]) -> Vec<rpc::LastEpoch> {
    let write = |last: &LastEpoch| rpc::LastEpoch { job: last.job.into(), epoch: last.epoch.into() };
    epochs.iter().map(write).collect()
}

/// Writes a rack's or a parameter host's part of a job, its token bare: [`mask`] hides it. `None` for the root's.
pub fn write_install(job: &JobInstall) -> Option<rpc::RackInstall> {
    let nowhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let (rack, racks, contributors, parent) = match job.level {
        Level::Rack { rack, racks, contributors, parent } => (rack, racks, contributors, parent),
        Level::Only => (0, 0, 0, nowhere),
        Level::Root { .. } => return None,
    };
    let write = |worker: &WorkerInstall| rpc::RackWorker {
        ip: worker.ip.to_bits(),
        port: worker.port.into(),
        mac: worker.mac.to_vec(),
        local_ip: worker.local_ip.to_bits(),
    };
    Some(rpc::RackInstall {
        job: job.job.into(),
        epoch: job.epoch.into(),
        masked_token: job.token,
        first_slot: job.first_slot,
        lane_slots: job.lane_slots,
        lanes: job.lanes.into(),
        shards: job.shards.into(),
        elements: job.elements.into(),
        checksum: job.checksum,
        rack: rack.into(),
        racks: racks.into(),
        contributors: contributors.into(),
        parent_ip: parent.ip().to_bits(),
        parent_port: parent.port().into(),
        workers: job.workers.iter().map(write).collect(),
        slots_reason: job.slots_reason.clone(),
        dynamic: job.dynamic.as_ref().map(dynamic::write_install),
    })
}

/// Hides the token of an order to install, if it is one.
pub fn mask(key: &Key, mut order: rpc::RackOrder) -> rpc::RackOrder {
    use rack_order::What::{Install, Renew, Resume};
    if let Some(Install(install) | Renew(install) | Resume(install)) = &mut order.what {
        install.masked_token = key.mask(install.job, install.epoch, install.masked_token);
    }
    order
}

/// Reads an order to install; `None` when a field is out of its range.
pub fn read_install(key: &Key, job: &rpc::RackInstall) -> Option<JobInstall> {
    let read = |worker: &rpc::RackWorker| {
        Some(WorkerInstall {
            ip: Ipv4Addr::from_bits(worker.ip),
            port: worker.port.try_into().ok()?,
            mac: worker.mac[..].try_into().ok()?,
            local_ip: Ipv4Addr::from_bits(worker.local_ip),
        })
    };
    Some(JobInstall {
        job: job.job.try_into().ok()?,
        epoch: job.epoch.try_into().ok()?,
        token: key.mask(job.job, job.epoch, job.masked_token),
        first_slot: job.first_slot,
        lane_slots: job.lane_slots,
        slots_reason: job.slots_reason.clone(),
        lanes: job.lanes.try_into().ok()?,
        shards: job.shards.try_into().ok()?,
        elements: job.elements.try_into().ok()?,
        checksum: job.checksum,
        // What is drawn is drawn at the root.
        stealing: false,
        level: match job.racks {
            0 => Level::Only,
            racks => Level::Rack {
                rack: job.rack.try_into().ok()?,
                racks: racks.try_into().ok()?,
                contributors: job.contributors.try_into().ok()?,
                parent: SocketAddrV4::new(
                    Ipv4Addr::from_bits(job.parent_ip),
                    job.parent_port.try_into().ok()?,
                ),
            },
        },
        workers: job.workers.iter().map(read).collect::<Option<_>>()?,
        dynamic: match &job.dynamic {
            Some(install) => Some(dynamic::read_install(install)?),
            None => None,
        },
    })
}

/// The order to resize a job.
pub fn resize(job: u16, lane_slots: u32, reason: &str) -> rack_order::What {
    rack_order::What::Resize(rpc::RackResize { job: job.into(), lane_slots, reason: reason.into() })
}

/// Writes what came of an install.
pub fn write_installed(installed: &Installed) -> rpc::RackInstalled {
    rpc::RackInstalled {
        aggregator_ips: installed.aggregator_ips.iter().map(|ip| ip.to_bits()).collect(),
        result_group: installed.result_group.map_or(0, Ipv4Addr::to_bits),
        resume: Vec::new(),
    }
}

/// Reads it.
pub fn read_installed(installed: &rpc::RackInstalled) -> Installed {
    Installed {
        aggregator_ips: installed.aggregator_ips.iter().copied().map(Ipv4Addr::from_bits).collect(),
        result_group: (installed.result_group != 0).then(|| Ipv4Addr::from_bits(installed.result_group)),
        host_sides: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_nothing_to_give_is_no_plane() {
        let good = rpc::RackPlane {
            kind: rpc::Plane::Host.into(),
            slots: 8,
            max_elements: 8,
            narrowest: "up0\n".into(),
            base_port: 65534,
            shards: 2,
            instance: 7,
            ..Default::default()
        };
        let (instance, info) = read_plane(&good).unwrap();
        assert_eq!((instance, info.narrowest.as_deref()), (7, Some("up0 ")));
        for bad in [
            rpc::RackPlane { kind: 0, ..good.clone() },
            rpc::RackPlane { slots: 0, ..good.clone() },
            rpc::RackPlane { max_elements: 0, ..good.clone() },
            rpc::RackPlane { max_elements: 65536, ..good.clone() },
            rpc::RackPlane { base_port: 0, ..good.clone() },
            rpc::RackPlane { base_port: 65535, ..good.clone() },
            rpc::RackPlane { shards: 0, ..good.clone() },
        ] {
            assert_eq!(read_plane(&bad), None, "{bad:?}");
        }
    }
}
