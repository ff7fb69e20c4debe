//! Between the messages and the types of this crate. What a peer sent is checked here.

mod dynamic;
pub mod rack;

use std::{net::Ipv4Addr, time::Duration};

use sumac_transport::{NonFinitePolicy, PathMeasure, Scale, WireFormat};

use crate::{
    assignment::Assignment,
    coordinator::{Event, Grant, JoinRequest, Post, RackId, Status, Wishes},
    failure::{FailureKind, JobFailure},
    plane::{PlaneKind, WorkerInstall},
    post::{Announcement, Notice, OperationOrder},
    refusal::{Refusal, RefusalKind, Refused},
    rpc::{self, event, post, status_reply},
    seal::Key,
};

/// Where a worker's connection comes from and ends.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The worker's end.
    pub peer: Ipv4Addr,
    /// The aggregator's end: the rack's, when it came through one.
    pub local: Ipv4Addr,
    /// The rack that passed it on.
    pub rack: Option<RackId>,
}

/// Reads a join; `key` shows the token of what it resumes.
pub fn join_request(key: &Key, request: &rpc::JoinRequest, caller: Caller) -> Result<JoinRequest, Refusal> {
    if request.version != crate::PROTOCOL_VERSION {
        return Err(Refusal::Version { ours: crate::PROTOCOL_VERSION, theirs: request.version });
    }
    let mac = <[u8; 6]>::try_from(&request.mac[..])
        .map_err(|_| Refusal::Invalid { what: "a MAC address has 6 bytes".into() })?;
    let ip = if request.data_ip == 0 { caller.peer } else { Ipv4Addr::from_bits(request.data_ip) };
    let port = small("data port", request.data_port)?;
    let wishes = wishes(request)?;
    check_address(ip, port, wishes.max_shards)?;
    let resumes = match request.resumes.clone() {
        Some(running) => {
            let had = grant(key, running).map(|grant| grant.assignment);
            Some(
                had.ok_or_else(|| Refusal::Invalid { what: "a running job that no worker can have".into() })?,
            )
        }
        None => None,
    };
    Ok(JoinRequest {
        job: request.job.clone(),
        rank: small("rank", request.rank)?,
        wishes,
        worker: WorkerInstall { ip, port, mac, local_ip: caller.local },
        rack: caller.rack,
        deadline: Duration::from_millis(request.deadline_ms),
        resumes,
    })
}

/// Refuses where no worker can be. What a worker says of itself is where results go.
fn check_address(ip: Ipv4Addr, port: u16, shards: u16) -> Result<(), Refusal> {
    if ip.is_multicast() || ip.is_broadcast() {
        return Err(Refusal::Invalid {
            what: format!("results cannot go to {ip}: give the worker's own address"),
        });
    }
    if port.checked_add(shards.saturating_sub(1)).is_none() {
        return Err(Refusal::Invalid {
            what: format!(
                "{shards} shards from data port {port} on do not fit below 65536: give a lower port"
            ),
        });
    }
    Ok(())
}

fn small(what: &str, value: u32) -> Result<u16, Refusal> {
    u16::try_from(value).map_err(|_| Refusal::Invalid { what: format!("{what} {value}: at most 65535") })
}

fn wishes(request: &rpc::JoinRequest) -> Result<Wishes, Refusal> {
    let unknown = |what: &str| Refusal::Invalid {
        what: format!(
            "the worker wants a {what} that this aggregator does not know; is it of another release?"
        ),
    };
    Ok(Wishes {
        world: small("world", request.world)?,
        elements: request.elements.map(|elements| small("elements", elements)).transpose()?,
        max_elements: small("elements", request.max_elements)?,
        slots: request.slots,
        shards: request.shards.map(|shards| small("shards", shards)).transpose()?,
        max_shards: small("shards", request.max_shards)?,
        scaling: request.scale.map_or(Scale::Block, Scale::Fixed),
        wire: match rpc::WireFormat::try_from(request.wire) {
            Ok(rpc::WireFormat::WireInt32) => WireFormat::Int32,
            Ok(rpc::WireFormat::WireInt16) => WireFormat::Int16,
            Err(_) => return Err(unknown("wire format")),
        },
        not_finite: match rpc::NotFinite::try_from(request.not_finite) {
            Ok(rpc::NotFinite::Error) => NonFinitePolicy::Error,
            Ok(rpc::NotFinite::Carry) => NonFinitePolicy::Carry,
            Err(_) => return Err(unknown("NaN policy")),
        },
        order: match rpc::Order::try_from(request.order) {
            Ok(rpc::Order::Submission) => OperationOrder::Submission,
            Ok(rpc::Order::Name) => OperationOrder::Name,
            Err(_) => return Err(unknown("order")),
        },
        checksum: request.checksum,
        mode: dynamic::read_mode(request.dynamic.as_ref())?,
    })
}

/// Writes what a rank wants into its join.
pub fn write_wishes(wishes: &Wishes, request: rpc::JoinRequest) -> rpc::JoinRequest {
    let wire = match wishes.wire {
        WireFormat::Int32 => rpc::WireFormat::WireInt32,
        WireFormat::Int16 => rpc::WireFormat::WireInt16,
    };
    let not_finite = match wishes.not_finite {
        NonFinitePolicy::Error => rpc::NotFinite::Error,
        NonFinitePolicy::Carry => rpc::NotFinite::Carry,
    };
    let order = match wishes.order {
        OperationOrder::Submission => rpc::Order::Submission,
        OperationOrder::Name => rpc::Order::Name,
    };
    rpc::JoinRequest {
        world: wishes.world.into(),
        elements: wishes.elements.map(u32::from),
        max_elements: wishes.max_elements.into(),
        slots: wishes.slots,
        shards: wishes.shards.map(u32::from),
        max_shards: wishes.max_shards.into(),
        scale: match wishes.scaling {
            Scale::Fixed(scale) => Some(scale),
            Scale::Block => None,
        },
        wire: wire.into(),
        not_finite: not_finite.into(),
        order: order.into(),
        checksum: wishes.checksum,
        dynamic: dynamic::write_mode(wishes.mode),
        ..request
    }
}

/// Writes a post.
pub fn write_post(written: &Post) -> rpc::Post {
    let what = match written {
        Post::Notice(notice) => post::What::Notice(write_notice(notice)),
        Post::Announcement(announced) => post::What::Announcement(rpc::Announcement {
            name: announced.name.clone(),
            signature: announced.signature,
            description: announced.description.clone(),
            priority: announced.priority.into(),
        }),
        Post::Measure(measure) => {
            post::What::Measure(rpc::PathMeasure { rtt_ns: measure.rtt_ns, bytes_per_s: measure.bytes_per_s })
        }
    };
    rpc::Post { what: Some(what) }
}

/// Reads a post; `None` when it has no meaning here.
pub fn read_post(written: rpc::Post) -> Option<Post> {
    Some(match written.what? {
        post::What::Notice(notice) => Post::Notice(Notice { key: notice.key, text: notice.text }),
        post::What::Announcement(announced) => Post::Announcement(Announcement {
            name: announced.name,
            signature: announced.signature,
            description: announced.description,
            priority: announced.priority.try_into().ok()?,
        }),
        post::What::Measure(measure) => {
            Post::Measure(PathMeasure { rtt_ns: measure.rtt_ns, bytes_per_s: measure.bytes_per_s })
        }
    })
}

/// Writes an event.
pub fn write_event(happened: &Event) -> rpc::Event {
    let what = match happened {
        Event::Notice { rank, notice } => event::What::Notice(rpc::PostedNotice {
            rank: u32::from(*rank),
            notice: Some(write_notice(notice)),
        }),
        Event::Released(name) => event::What::Released(name.clone()),
    };
    rpc::Event { what: Some(what) }
}

/// Reads an event; `None` when this build does not know it.
pub fn read_event(happened: rpc::Event) -> Option<Event> {
    Some(match happened.what? {
        event::What::Notice(posted) => {
            let notice = posted.notice?;
            Event::Notice {
                rank: posted.rank.try_into().ok()?,
                notice: Notice { key: notice.key, text: notice.text },
            }
        }
        event::What::Released(name) => Event::Released(name),
    })
}

fn write_notice(notice: &Notice) -> rpc::Notice {
    rpc::Notice { key: notice.key, text: notice.text.clone() }
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
    rpc::StatusReply { session, counter, revision, status: Some(status), ..Default::default() }
}

/// Writes a kind of plane.
pub fn write_kind(kind: PlaneKind) -> rpc::Plane {
    match kind {
        PlaneKind::Ebpf => rpc::Plane::Ebpf,
        PlaneKind::Host => rpc::Plane::Host,
        PlaneKind::None => rpc::Plane::None,
        PlaneKind::Parameter => rpc::Plane::Parameter,
    }
}

/// Reads a kind of plane; `None` when this build does not know it.
pub fn read_kind(kind: i32) -> Option<PlaneKind> {
    match rpc::Plane::try_from(kind) {
        Ok(rpc::Plane::Ebpf) => Some(PlaneKind::Ebpf),
        Ok(rpc::Plane::Host) => Some(PlaneKind::Host),
        Ok(rpc::Plane::None) => Some(PlaneKind::None),
        Ok(rpc::Plane::Parameter) => Some(PlaneKind::Parameter),
        Ok(rpc::Plane::Unspecified) | Err(_) => None,
    }
}

fn running(key: &Key, grant: &Grant) -> rpc::Running {
    rpc::Running { departed: wide(&grant.departed), ..assigned(key, &grant.assignment) }
}

/// Writes what a worker got; `key` hides the token.
pub fn assigned(key: &Key, assignment: &Assignment) -> rpc::Running {
    rpc::Running {
        job: assignment.job.into(),
        epoch: assignment.epoch.into(),
        masked_token: key.mask(assignment.job.into(), assignment.epoch.into(), assignment.token),
        lane_slots: assignment.lane_slots,
        elements: assignment.elements.into(),
        aggregator_ip: assignment.aggregator_ip.to_bits(),
        base_port: assignment.base_port.into(),
        shards: assignment.shards.into(),
        plane: write_kind(assignment.plane).into(),
        result_group: assignment.result_group.map_or(0, Ipv4Addr::to_bits),
        departed: Vec::new(),
        tune: assignment.tune,
        slots_reason: assignment.slots_reason.clone(),
        rack_rank: assignment.rack_rank.into(),
        rack_world: assignment.rack_world.into(),
        dynamic: assignment.dynamic.as_ref().map(dynamic::write_terms),
    }
}

/// Reads a grant; `None` when a field is out of its range.
pub fn grant(key: &Key, running: rpc::Running) -> Option<Grant> {
    let has_slots = running.dynamic.is_some() || running.lane_slots.is_power_of_two();
    if !has_slots || running.job == 0 || running.shards == 0 {
        return None;
    }
    let dynamic = match running.dynamic {
        Some(terms) => Some(dynamic::read_terms(terms)?),
        None => None,
    };
    let assignment = Assignment {
        job: running.job.try_into().ok()?,
        epoch: running.epoch.try_into().ok()?,
        token: key.mask(running.job, running.epoch, running.masked_token),
        lane_slots: running.lane_slots,
        tune: running.tune,
        slots_reason: running.slots_reason,
        elements: running.elements.try_into().ok()?,
        shards: running.shards.try_into().ok()?,
        aggregator_ip: Ipv4Addr::from_bits(running.aggregator_ip),
        base_port: running.base_port.try_into().ok()?,
        plane: read_kind(running.plane)?,
        result_group: (running.result_group != 0).then(|| Ipv4Addr::from_bits(running.result_group)),
        rack_rank: running.rack_rank.try_into().ok()?,
        rack_world: running.rack_world.try_into().ok()?,
        dynamic,
    };
    Some(Grant { assignment, departed: narrow(&running.departed) })
}

const REFUSALS: [(RefusalKind, rpc::RefusalKind); 12] = [
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
    (RefusalKind::Hosts, rpc::RefusalKind::RefusalHosts),
    (RefusalKind::Over, rpc::RefusalKind::RefusalOver),
];

const FAILURES: [(FailureKind, rpc::FailureKind); 8] = [
    (FailureKind::Silent, rpc::FailureKind::FailureSilent),
    (FailureKind::Left, rpc::FailureKind::FailureLeft),
    (FailureKind::StateLost, rpc::FailureKind::FailureStateLost),
    (FailureKind::PlaneDown, rpc::FailureKind::FailurePlaneDown),
    (FailureKind::Stopped, rpc::FailureKind::FailureStopped),
    (FailureKind::Mismatch, rpc::FailureKind::FailureMismatch),
    (FailureKind::Rack, rpc::FailureKind::FailureRack),
    (FailureKind::ParameterHost, rpc::FailureKind::FailureParameterHost),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_where_a_worker_can_be() {
        let own = Ipv4Addr::new(10, 77, 0, 2);
        let table = [
            (own, 48700, 8, None),
            (own, 65535, 1, None),
            (own, 65535, 2, Some("do not fit below 65536")),
            (Ipv4Addr::new(224, 0, 0, 1), 48700, 1, Some("cannot go to 224.0.0.1")),
            (Ipv4Addr::BROADCAST, 48700, 1, Some("cannot go to 255.255.255.255")),
        ];
        for (ip, port, shards, refused) in table {
            let said = check_address(ip, port, shards).err().map(|refusal| refusal.to_string());
            assert_eq!(said.is_some(), refused.is_some(), "{said:?}");
            assert!(
                refused.is_none_or(|words| said.as_deref().is_some_and(|said| said.contains(words))),
                "{said:?}"
            );
        }
    }
}
