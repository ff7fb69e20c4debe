//! The parameters of a job that follow from what its ranks ask for and its aggregators have.

use sumac_job::limits::{MAX_WINDOW, MIN_WINDOW};
use sumac_job::{JobSpec, JobTerms, Mode, Scale, Topology, WireFormat};
use sumac_wire::{BLOCK_ELEMENTS, CLASSES, MAX_HOSTS, MAX_LANES, PAGE_ELEMENTS};

use crate::{
    failure::{COMPILED_IN, Refusal, RefusalKind, invalid},
    message::JoinRequest,
    plane::{PlaneInfo, PlaneKind},
};

/// Chunks of a lane that may be ahead of the first without a result, unless workers ask for another number.
pub const DEFAULT_WINDOW: u32 = 256;
/// Packets of a direct job in flight to one worker, unless workers ask for another number: what all workers
/// send at once to one must fit its receive queue.
const DIRECT_WINDOW: u32 = 64;
/// The factor for floats in a dynamic job unless workers give one (ATP section 3.8). It leaves 16 bits no
/// range: sums that may have so few are scaled by block.
pub const DYNAMIC_SCALE: f32 = 1e8;

fn text(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn scale(spec: &JobSpec) -> Scale {
    let default = match (spec.mode, spec.wire.unwrap_or_default()) {
        (Some(Mode::Dynamic), WireFormat::Int32) => Scale::Fixed(DYNAMIC_SCALE),
        _ => Scale::Block,
    };
    spec.scale.unwrap_or(default)
}

/// Whether the job yields to congestion; `None`: there is no choice in its mode.
fn congestion_control(spec: &JobSpec) -> Option<bool> {
    let default = match spec.mode.unwrap_or_default() {
        Mode::Static => false,
        Mode::Dynamic => true,
        Mode::Direct => return None,
    };
    Some(spec.congestion_control.unwrap_or(default))
}

fn lane_slots(spec: &JobSpec) -> Option<u32> {
    spec.slots.filter(|_| spec.mode.unwrap_or_default() == Mode::Static)
}

/// A parameter that all ranks have alike: its name, and its value unless that is left open.
type Parameter = (&'static str, Option<String>);

fn parameters(spec: &JobSpec, checksum: Option<bool>) -> [Parameter; 18] {
    [
        ("world size", Some(spec.world.to_string())),
        ("local world size", Some(spec.ranks_per_worker().to_string())),
        ("mode", Some(spec.mode.unwrap_or_default().name().to_owned())),
        ("chunk elements", text(spec.elements)),
        ("scaling", Some(scale(spec).to_string())),
        ("wire format", Some(spec.wire.unwrap_or_default().name().to_owned())),
        ("NaN policy", Some(spec.not_finite.unwrap_or_default().name().to_owned())),
        ("order", Some(format!("by {}", spec.order.unwrap_or_default().name()))),
        ("checksum", text(checksum)),
        ("slots", text(lane_slots(spec))),
        ("shards", text(spec.shards)),
        ("window", text(spec.window)),
        ("shared slots", text(spec.dynamic_slots)),
        ("parameter hosts", text(spec.parameter_hosts)),
        ("congestion control", text(congestion_control(spec))),
        ("topology", text(spec.topology.map(Topology::name))),
        ("owners", text(spec.owners)),
        ("servers", Some(spec.servers.unwrap_or_default().to_string())),
    ]
}

/// Returns the first parameter in which two ranks differ, with both values. An absent value differs from
/// none.
#[must_use]
pub fn difference(one: &JobSpec, other: &JobSpec) -> Option<(&'static str, [String; 2])> {
    first_difference(parameters(one, None), parameters(other, None))
}

fn first_difference(one: [Parameter; 18], other: [Parameter; 18]) -> Option<(&'static str, [String; 2])> {
    one.into_iter().zip(other).find_map(|pair| match pair {
        ((what, Some(a)), (_, Some(b))) if a != b => Some((what, [a, b])),
        _ => None,
    })
}

impl JoinRequest {
    pub(super) fn mode(&self) -> Mode {
        self.spec.mode.unwrap_or_default()
    }

    pub(super) fn is_dynamic(&self) -> bool {
        self.mode() == Mode::Dynamic
    }

    /// Static mode: slots of a lane that are asked for.
    pub(super) fn lane_slots(&self) -> Option<u32> {
        lane_slots(&self.spec)
    }

    /// As [`difference`], of the hosts too.
    pub(super) fn difference(&self, other: &JoinRequest) -> Option<(&'static str, [String; 2])> {
        let of = |asked: &JoinRequest| parameters(&asked.spec, Some(asked.host.checksum));
        first_difference(of(self), of(other))
    }

    pub(super) fn check(&self, limits: &Limits) -> Result<(), Refusal> {
        let spec = &self.spec;
        if spec.elements == Some(0) || self.host.max_elements == 0 {
            return invalid("chunks of 0 elements: give at least 1");
        }
        if let Some(wanted) = spec.elements.filter(|wanted| *wanted > limits.max_elements) {
            return Err(limits.refuse(wanted));
        }
        if let Some(Scale::Fixed(scale)) = spec.scale
            && !(scale.is_normal() && scale > 0.0)
        {
            return invalid(format!("a scale of {scale}: it must be finite and above 0"));
        }
        if let Some(slots) = self.lane_slots().filter(|slots| !slots.is_power_of_two()) {
            let instead = slots.max(1).checked_next_power_of_two().unwrap_or(1 << 31);
            return invalid(format!("{slots} slots: give a power of two, such as {instead}"));
        }
        if spec.shards == Some(0) || self.host.max_shards == 0 {
            return invalid("0 shards: give at least 1");
        }
        if let Some(shards) = spec.shards.filter(|shards| *shards > limits.shards) {
            return invalid(format!(
                "{shards} shards: the aggregator has {}; ask for fewer, or give it more --shards \
                ({COMPILED_IN})",
                limits.shards
            ));
        }
        match self.mode() {
            Mode::Static => Ok(()),
            Mode::Dynamic => self.check_dynamic(),
            Mode::Direct => self.check_direct(),
        }
    }

    fn check_direct(&self) -> Result<(), Refusal> {
        let JobSpec { owners, window, .. } = self.spec;
        let workers = self.spec.workers();
        if let Some(problem) = self.spec.problem_of_servers() {
            return invalid(problem);
        }
        if let Some(owners) = owners.filter(|owners| !(1..=workers).contains(owners)) {
            return invalid(format!(
                "{owners} owners of blocks in a world of {workers}: give 1 to {workers}"
            ));
        }
        if let Some(window) = window.filter(|window| !(MIN_WINDOW..=MAX_WINDOW).contains(window)) {
            return invalid(format!("a window of {window} packets: give {MIN_WINDOW} to {MAX_WINDOW}"));
        }
        Ok(())
    }

    fn check_dynamic(&self) -> Result<(), Refusal> {
        let spec = &self.spec;
        if let Some(wanted) = spec.elements.filter(|wanted| usize::from(*wanted) > PAGE_ELEMENTS) {
            return invalid(format!(
                "chunks of {wanted} elements in a dynamic job: it takes at most {PAGE_ELEMENTS}"
            ));
        }
        let is_possible =
            |window: &u32| window.is_power_of_two() && (MIN_WINDOW..=MAX_WINDOW).contains(window);
        if let Some(window) = spec.window.filter(|window| !is_possible(window)) {
            return invalid(format!(
                "a window of {window} chunks: give a power of two from {MIN_WINDOW} to {MAX_WINDOW}"
            ));
        }
        if spec.dynamic_slots == Some(0) {
            return invalid("0 slots of each shard: give at least 1, or leave the number open");
        }
        match spec.parameter_hosts {
            Some(hosts) if hosts == 0 || usize::from(hosts) > MAX_HOSTS => {
                invalid(format!("{hosts} parameter hosts: a job has 1 to {MAX_HOSTS}"))
            }
            _ => Ok(()),
        }
    }
}

/// The limits of a job: a plane's own, or the least of several.
pub(super) type Limits = PlaneInfo;

impl PlaneInfo {
    pub(super) fn limits(&self, mode: Mode) -> Limits {
        let dynamic_slots = match self.kind {
            PlaneKind::Ebpf | PlaneKind::Host | PlaneKind::P4 => self.dynamic_slots,
            // A plane without slots of any kind limits none.
            PlaneKind::None | PlaneKind::Parameter => u32::MAX,
        };
        let max_elements = self.most_elements(mode);
        let is_forwarded = mode == Mode::Direct && self.kind == PlaneKind::P4;
        let verifies_checksums = is_forwarded || self.verifies_checksums;
        let shards = self.shards.min(MAX_LANES as u16 / CLASSES);
        Limits { max_elements, shards, dynamic_slots, verifies_checksums, ..self.clone() }
    }

    /// The limits of a static job at two levels. A rack repeats its part, also one of which a switch lost a
    /// block. A switch's budget is for workers of its own, whose results it sends itself.
    pub(super) fn at_two_levels(self) -> Limits {
        if self.kind != PlaneKind::P4 {
            return self;
        }
        let max_elements = self.max_elements.min(BLOCK_ELEMENTS as u16);
        Limits { max_elements, bounds_loss: false, ..self }
    }

    pub(super) fn at(self, title: &str) -> Limits {
        let narrowest = self.narrowest.map(|port| format!("{port} at {title}"));
        Limits { narrowest, ..self }
    }

    fn refuse(&self, wanted: u16) -> Refusal {
        let max = self.max_elements;
        let limit = match &self.narrowest {
            Some(port) => {
                format!("since its port {port} carries no more; ask for fewer, or raise the MTU there")
            }
            None => {
                format!("which its slots hold; ask for fewer, or give it larger --elements ({COMPILED_IN})")
            }
        };
        let message =
            format!("chunks of {wanted} elements are too large: the aggregator takes at most {max}, {limit}");
        Refusal::new(RefusalKind::TooManyElements, &[], message)
    }

    pub(super) fn and(self, other: Limits) -> Limits {
        let narrowest =
            if self.max_elements <= other.max_elements { self.narrowest } else { other.narrowest };
        Limits {
            slots: self.slots.min(other.slots),
            max_elements: self.max_elements.min(other.max_elements),
            narrowest,
            shards: self.shards.min(other.shards),
            dynamic_slots: self.dynamic_slots.min(other.dynamic_slots),
            verifies_checksums: self.verifies_checksums && other.verifies_checksums,
            marks_overflow: self.marks_overflow && other.marks_overflow,
            bounds_loss: self.bounds_loss && other.bounds_loss,
            ..self
        }
    }
}

/// Combines the requests of all ranks, which do not differ. Numbers of the job, its slots and its peers are
/// open yet.
pub(super) fn agree<'a>(
    ranks: impl Iterator<Item = (u16, &'a JoinRequest)> + Clone,
    limits: &Limits,
) -> Result<JobTerms, Refusal> {
    let all = || ranks.clone().map(|(_, asked)| asked);
    let elements = all().find_map(|asked| asked.spec.elements);
    if let Some(wanted) = elements.filter(|wanted| *wanted > limits.max_elements) {
        return Err(limits.refuse(wanted));
    }
    let elements = least(ranks.clone(), elements, limits.max_elements, "chunk elements", |asked| {
        asked.host.max_elements
    })?;
    let shards = all().find_map(|asked| asked.spec.shards);
    if let Some(shards) = shards.filter(|shards| *shards > limits.shards) {
        return invalid(format!("{shards} shards: the aggregators have {}; ask for fewer", limits.shards));
    }
    let shards = least(ranks.clone(), shards, limits.shards, "shards", |asked| asked.host.max_shards)?;
    let first = all().next().ok_or_else(Refusal::stopping)?;
    let usual = if first.mode() == Mode::Direct { DIRECT_WINDOW } else { DEFAULT_WINDOW };
    let window = all().find_map(|asked| asked.spec.window).unwrap_or(usual);
    Ok(JobTerms {
        mode: first.mode(),
        elements,
        shards,
        checksum: limits.verifies_checksums && all().any(|asked| asked.host.checksum),
        headroom: first.is_dynamic() && !limits.marks_overflow,
        whole: first.mode() == Mode::Static && !limits.bounds_loss,
        scale: scale(&first.spec),
        wire: first.spec.wire.unwrap_or_default(),
        not_finite: first.spec.not_finite.unwrap_or_default(),
        order: first.spec.order.unwrap_or_default(),
        window: if first.mode() == Mode::Static { 0 } else { window },
        topology: first.spec.topology.unwrap_or_default(),
        owners: all()
            .find_map(|asked| asked.spec.owners)
            .or(first.spec.servers)
            .unwrap_or(first.spec.workers()),
        servers: first.spec.servers.unwrap_or_default(),
        congestion_control: congestion_control(&first.spec).unwrap_or_default(),
        local_world: first.spec.ranks_per_worker(),
        ..JobTerms::new(0, 0, 0, first.spec.workers())
    })
}

/// Returns the number that was asked for, if every rank has as much; else the least that any has.
fn least<'a>(
    ranks: impl Iterator<Item = (u16, &'a JoinRequest)>,
    asked: Option<u16>,
    limit: u16,
    what: &str,
    most: fn(&JoinRequest) -> u16,
) -> Result<u16, Refusal> {
    let Some((rank, least)) = ranks.map(|(rank, asked)| (rank, most(asked))).min_by_key(|(_, most)| *most)
    else {
        return Ok(limit);
    };
    match asked {
        Some(asked) if asked > least => {
            invalid(format!("{asked} {what} were asked for, but rank {rank} has at most {least}"))
        }
        Some(asked) => Ok(asked),
        None => Ok(least.min(limit)),
    }
}
