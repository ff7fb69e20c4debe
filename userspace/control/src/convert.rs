//! Between the messages and the types of this crate. What a peer sent is checked here.

use std::{net::Ipv4Addr, time::Duration};

use crate::{
    coordinator::{Grant, JoinRequest, Status},
    failure::{FailureKind, JobFailure},
    plane::{PlaneKind, WorkerInstall},
    refusal::{Refusal, RefusalKind, Refused},
    rpc::{self, status_reply},
    seal::Key,
};

/// Reads a join. `peer` and `local` are the ends of its connection.
pub fn join_request(
    request: &rpc::JoinRequest,
    peer: Ipv4Addr,
    local: Ipv4Addr,
) -> Result<JoinRequest, Refusal> {
    if request.version != crate::PROTOCOL_VERSION {
        return Err(Refusal::Version { ours: crate::PROTOCOL_VERSION, theirs: request.version });
    }
    let small = |what: &str, value: u32| {
        u16::try_from(value).map_err(|_| Refusal::Invalid { what: format!("{what} {value}: at most 65535") })
    };
    let mac = <[u8; 6]>::try_from(&request.mac[..])
        .map_err(|_| Refusal::Invalid { what: "a MAC address has 6 bytes".into() })?;
    let ip = if request.data_ip == 0 { peer } else { Ipv4Addr::from_bits(request.data_ip) };
    Ok(JoinRequest {
        job: request.job.clone(),
        rank: small("rank", request.rank)?,
        world: small("world", request.world)?,
        elements: small("elements", request.elements)?,
        slots: request.slots,
        scale: request.scale,
        checksum: request.checksum,
        worker: WorkerInstall { ip, port: small("data port", request.data_port)?, mac, local_ip: local },
        deadline: Duration::from_millis(request.deadline_ms),
    })
}

/// Writes a status; `key` hides the token.
pub fn status_reply(
    key: &Key,
    session: u64,
    counter: u64,
    revision: u64,
    status: &Status,
) -> rpc::StatusReply {
    let status = match status {
        Status::Waiting(missing) => status_reply::Status::Waiting(rpc::Waiting { missing: wide(missing) }),
        Status::Running(grant) => status_reply::Status::Running(running(key, grant)),
        Status::Refused(refusal) => status_reply::Status::Refused(refused(refusal)),
        Status::Failed(failure) => status_reply::Status::Failed(failed(failure)),
        Status::Left => status_reply::Status::Left(rpc::Left {}),
    };
    rpc::StatusReply { session, counter, revision, status: Some(status) }
}

fn running(key: &Key, grant: &Grant) -> rpc::Running {
    let plane = match grant.plane {
        PlaneKind::Ebpf => rpc::Plane::Ebpf,
        PlaneKind::Host => rpc::Plane::Host,
    };
    rpc::Running {
        job: grant.job.into(),
        epoch: grant.epoch.into(),
        masked_token: key.mask(grant.token),
        slots: grant.slots,
        elements: grant.elements.into(),
        scale: grant.scale,
        aggregator_ip: grant.aggregator_ip.to_bits(),
        base_port: grant.base_port.into(),
        shards: grant.shards.into(),
        plane: plane.into(),
        result_group: grant.result_group.map_or(0, Ipv4Addr::to_bits),
        departed: wide(&grant.departed),
    }
}

/// Reads a grant; `None` when a field is out of its range.
pub fn grant(key: &Key, running: &rpc::Running) -> Option<Grant> {
    let plane = match rpc::Plane::try_from(running.plane) {
        Ok(rpc::Plane::Ebpf) => PlaneKind::Ebpf,
        Ok(rpc::Plane::Host) => PlaneKind::Host,
        _ => return None,
    };
    if !running.slots.is_power_of_two() || running.job == 0 || running.shards == 0 {
        return None;
    }
    Some(Grant {
        job: running.job.try_into().ok()?,
        epoch: running.epoch.try_into().ok()?,
        token: key.mask(running.masked_token),
        slots: running.slots,
        elements: running.elements.try_into().ok()?,
        scale: running.scale,
        aggregator_ip: Ipv4Addr::from_bits(running.aggregator_ip),
        base_port: running.base_port.try_into().ok()?,
        shards: running.shards.try_into().ok()?,
        plane,
        result_group: (running.result_group != 0).then(|| Ipv4Addr::from_bits(running.result_group)),
        departed: narrow(&running.departed),
    })
}

const REFUSALS: [(RefusalKind, rpc::RefusalKind); 10] = [
    (RefusalKind::Version, rpc::RefusalKind::RefusalVersion),
    (RefusalKind::Invalid, rpc::RefusalKind::RefusalInvalid),
    (RefusalKind::Missing, rpc::RefusalKind::RefusalMissing),
    (RefusalKind::RankTaken, rpc::RefusalKind::RefusalRankTaken),
    (RefusalKind::Mismatch, rpc::RefusalKind::RefusalMismatch),
    (RefusalKind::PoolFull, rpc::RefusalKind::RefusalPoolFull),
    (RefusalKind::TooManyElements, rpc::RefusalKind::RefusalTooManyElements),
    (RefusalKind::TooManyJobs, rpc::RefusalKind::RefusalTooManyJobs),
    (RefusalKind::Plane, rpc::RefusalKind::RefusalPlane),
    (RefusalKind::Stopping, rpc::RefusalKind::RefusalStopping),
];

const FAILURES: [(FailureKind, rpc::FailureKind); 5] = [
    (FailureKind::Silent, rpc::FailureKind::FailureSilent),
    (FailureKind::Left, rpc::FailureKind::FailureLeft),
    (FailureKind::StateLost, rpc::FailureKind::FailureStateLost),
    (FailureKind::PlaneDown, rpc::FailureKind::FailurePlaneDown),
    (FailureKind::Stopped, rpc::FailureKind::FailureStopped),
];

fn refused(refusal: &Refusal) -> rpc::Refusal {
    let kind = refusal.kind();
    let wire = REFUSALS.iter().find(|(ours, _)| *ours == kind).map(|(_, wire)| *wire);
    rpc::Refusal {
        kind: wire.unwrap_or_default().into(),
        message: refusal.to_string(),
        ranks: wide(&refusal.ranks()),
    }
}

/// Reads a refusal. A kind that this build does not know keeps its words.
pub fn read_refusal(refusal: rpc::Refusal) -> Refused {
    let known = REFUSALS.iter().find(|(_, wire)| i32::from(*wire) == refusal.kind);
    Refused {
        kind: known.map_or(RefusalKind::Unknown, |(kind, _)| *kind),
        message: refusal.message,
        ranks: narrow(&refusal.ranks),
    }
}

fn failed(failure: &JobFailure) -> rpc::Failure {
    let wire = FAILURES.iter().find(|(ours, _)| *ours == failure.kind).map(|(_, wire)| *wire);
    rpc::Failure {
        kind: wire.unwrap_or_default().into(),
        message: failure.message.clone(),
        culprit: failure.culprit.map(u32::from),
    }
}

/// Reads a failure. A kind that this build does not know keeps its words.
pub fn read_failure(failure: rpc::Failure) -> JobFailure {
    let known = FAILURES.iter().find(|(_, wire)| i32::from(*wire) == failure.kind);
    JobFailure {
        kind: known.map_or(FailureKind::Unknown, |(kind, _)| *kind),
        message: failure.message,
        culprit: failure.culprit.and_then(|rank| rank.try_into().ok()),
    }
}

fn wide(ranks: &[u16]) -> Vec<u32> {
    ranks.iter().copied().map(u32::from).collect()
}

/// Ranks as they came; those out of range are no ranks.
pub fn narrow(ranks: &[u32]) -> Vec<u16> {
    ranks.iter().filter_map(|rank| u16::try_from(*rank).ok()).collect()
}
