//! What each rank wants of a job, whether they all fit together, and what comes out of it.

use std::sync::Arc;

use sumac_transport::{
    NonFinitePolicy, Scale, WireFormat,
    dynamic::{MAX_WINDOW, MIN_WINDOW},
};
use sumac_wire::{CLASSES, MAX_HOSTS, MAX_LANES, PAGE_ELEMENTS};

use crate::{
    dynamic::{DynamicWishes, Mode},
    plane::{PlaneInfo, PlaneKind},
    post::OperationOrder,
    refusal::Refusal,
};

/// What one rank wants of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Wishes {
    /// How many workers the job has.
    pub world: u16,
    /// 32-bit words in a chunk; `None`: what all can carry.
    pub elements: Option<u16>,
    /// The most words that this rank's packets can carry.
    pub max_elements: u16,
    /// Slots of a lane, a power of two; `None`: to be measured. Without meaning in a dynamic job.
    pub slots: Option<u32>,
    /// Shards; `None`: as many as all have.
    pub shards: Option<u16>,
    /// The most shards that this rank has.
    pub max_shards: u16,
    /// What floats are multiplied by.
    pub scaling: Scale,
    /// How many bits a float has on the wire.
    pub wire: WireFormat,
    /// What becomes of NaN and infinity.
    pub not_finite: NonFinitePolicy,
    /// In which order operations run.
    pub order: OperationOrder,
    /// Whether packets carry UDP checksums.
    pub checksum: bool,
    /// How chunks find slots.
    pub mode: Mode,
}

impl Wishes {
    /// Slots of a lane that are asked for, of a static job.
    pub(super) fn lane_slots(&self) -> Option<u32> {
        self.slots.filter(|_| self.mode == Mode::Static)
    }

    /// The first parameter in which two ranks differ, and both values. What a rank leaves open differs from nothing.
    pub(super) fn difference(&self, other: &Wishes) -> Option<(&'static str, [String; 2])> {
        let pairs = [
            ("world size", Some(self.world.to_string()), Some(other.world.to_string())),
            ("mode", Some(mode(self.mode)), Some(mode(other.mode))),
            ("chunk elements", text(self.elements), text(other.elements)),
            ("scaling", Some(scaling(self.scaling)), Some(scaling(other.scaling))),
            ("wire format", Some(wire(self.wire)), Some(wire(other.wire))),
            ("NaN policy", Some(not_finite(self.not_finite)), Some(not_finite(other.not_finite))),
            ("order", Some(order(self.order)), Some(order(other.order))),
            ("checksum", Some(self.checksum.to_string()), Some(other.checksum.to_string())),
            ("slots", text(self.lane_slots()), text(other.lane_slots())),
            ("shards", text(self.shards), text(other.shards)),
        ];
        let of_mode = self.mode.dynamic().zip(other.mode.dynamic()).map(|(own, other)| own.compared(&other));
        pairs.into_iter().chain(of_mode.into_iter().flatten()).find_map(|(what, a, b)| match (a, b) {
            (Some(a), Some(b)) if a != b => Some((what, [a, b])),
            _ => None,
        })
    }

    /// Refuses what no job can have, or none on this aggregator.
    pub(super) fn check(&self, limits: &Limits) -> Result<(), Refusal> {
        let invalid = |what: String| Err(Refusal::Invalid { what });
        if self.elements == Some(0) || self.max_elements == 0 {
            return invalid("chunks of 0 elements: give at least 1".into());
        }
        if let Some(wanted) = self.elements
            && wanted > limits.elements
        {
            return Err(limits.refuse(wanted));
        }
        if let Scale::Fixed(scale) = self.scaling
            && !(scale.is_normal() && scale > 0.0)
        {
            return invalid(format!("a scale of {scale}: it must be finite and above 0"));
        }
        if let Some(slots) = self.lane_slots()
            && !slots.is_power_of_two()
        {
            let instead = slots.max(1).checked_next_power_of_two().unwrap_or(1 << 31);
            return invalid(format!("{slots} slots: give a power of two, such as {instead}"));
        }
        if self.shards == Some(0) || self.max_shards == 0 {
            return invalid("0 shards: give at least 1".into());
        }
        if let Some(shards) = self.shards.filter(|shards| *shards > limits.shards) {
            return invalid(format!(
                "{shards} shards: the aggregator has {}; ask for fewer, or attach it with more",
                limits.shards
            ));
        }
        self.mode.dynamic().map_or(Ok(()), |wishes| self.check_dynamic(wishes))
    }

    /// Refuses what no dynamic job can have.
    fn check_dynamic(&self, wishes: DynamicWishes) -> Result<(), Refusal> {
        let invalid = |what: String| Err(Refusal::Invalid { what });
        if self.wire == WireFormat::Int16 {
            return invalid(
                "int16 on the wire in a dynamic job: it adds int32 only; open it with wire int32".into(),
            );
        }
        if let Some(wanted) = self.elements.filter(|wanted| usize::from(*wanted) > PAGE_ELEMENTS) {
            return invalid(format!(
                "chunks of {wanted} elements in a dynamic job: it takes at most {PAGE_ELEMENTS}"
            ));
        }
        let is_possible =
            |window: &u32| window.is_power_of_two() && (MIN_WINDOW..=MAX_WINDOW).contains(window);
        if let Some(window) = wishes.window.filter(|window| !is_possible(window)) {
            return invalid(format!(
                "a window of {window} chunks: give a power of two from {MIN_WINDOW} to {MAX_WINDOW}"
            ));
        }
        if wishes.slots == Some(0) {
            return invalid("0 slots of each shard: give at least 1, or leave the number open".into());
        }
        match wishes.hosts {
            Some(hosts) if hosts == 0 || usize::from(hosts) > MAX_HOSTS => {
                invalid(format!("{hosts} parameter hosts: a job has 1 to {MAX_HOSTS}"))
            }
            _ => Ok(()),
        }
    }
}

/// A parameter's name, and what each of two ranks wants of it.
type Compared = (&'static str, Option<String>, Option<String>);

impl DynamicWishes {
    /// What two ranks of a dynamic job must agree on.
    fn compared(&self, other: &DynamicWishes) -> [Compared; 5] {
        let placement = |wishes: &DynamicWishes| {
            Some(if wishes.linear { "in their order" } else { "by hash" }.to_owned())
        };
        [
            ("window", text(self.window), text(other.window)),
            ("shared slots", text(self.slots), text(other.slots)),
            ("parameter hosts", text(self.hosts), text(other.hosts)),
            ("chunks in slots", placement(self), placement(other)),
            ("congestion control", text(Some(self.congestion)), text(Some(other.congestion))),
        ]
    }

    /// What either of two ranks that do not differ asks for.
    fn or(self, other: DynamicWishes) -> DynamicWishes {
        DynamicWishes {
            window: self.window.or(other.window),
            slots: self.slots.or(other.slots),
            hosts: self.hosts.or(other.hosts),
            ..self
        }
    }
}

/// What the aggregators of a job can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub slots: u32,
    pub elements: u16,
    /// The port that carries no more.
    pub narrowest: Option<Arc<str>>,
    pub shards: u16,
    /// Slots of each shard that dynamic jobs share.
    pub dynamic_slots: u32,
}

impl Limits {
    /// Those of one aggregator.
    pub fn of(plane: &PlaneInfo) -> Limits {
        Limits {
            slots: plane.slots,
            elements: plane.max_elements.min(sumac_wire::MAX_ELEMENTS as u16),
            narrowest: plane.narrowest.clone(),
            shards: plane.shards.min(MAX_LANES as u16 / CLASSES),
            dynamic_slots: match plane.kind {
                PlaneKind::Ebpf | PlaneKind::Host => plane.dynamic_slots,
                // What has no slots of any kind limits none.
                PlaneKind::None | PlaneKind::Parameter => u32::MAX,
            },
        }
    }

    /// Those of dynamic jobs.
    pub fn of_dynamic(self) -> Limits {
        Limits { elements: self.elements.min(PAGE_ELEMENTS as u16), ..self }
    }

    /// Those of the rack, or parameter host, that people call `place`.
    pub fn at(self, place: &str) -> Limits {
        let narrowest = self.narrowest.map(|port| format!("{port} at {place}").into());
        Limits { narrowest, ..self }
    }

    /// No chunks of so many elements.
    fn refuse(&self, wanted: u16) -> Refusal {
        Refusal::TooManyElements { wanted, max: self.elements, narrowest: self.narrowest.clone() }
    }

    /// Those of this one and another together.
    pub fn and(self, other: Limits) -> Limits {
        let narrowest = if self.elements <= other.elements { self.narrowest } else { other.narrowest };
        Limits {
            slots: self.slots.min(other.slots),
            elements: self.elements.min(other.elements),
            narrowest,
            shards: self.shards.min(other.shards),
            dynamic_slots: self.dynamic_slots.min(other.dynamic_slots),
        }
    }
}

/// What all ranks of a job have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub elements: u16,
    pub shards: u16,
    /// Slots of a lane; `None`: to be measured.
    pub slots: Option<u32>,
    pub checksum: bool,
    pub order: OperationOrder,
    /// What all ranks together ask of a dynamic job; `None`: it is static.
    pub dynamic: Option<DynamicWishes>,
}

impl Terms {
    /// The mode of a job, from the wishes of all ranks, which do not differ.
    pub fn mode<'a>(ranks: impl Iterator<Item = &'a Wishes>) -> Mode {
        let dynamic = ranks.filter_map(|wishes| wishes.mode.dynamic());
        dynamic.reduce(DynamicWishes::or).map_or(Mode::Static, Mode::Dynamic)
    }

    /// Number of lanes.
    pub fn lanes(&self) -> u16 {
        CLASSES * self.shards
    }

    /// Brings the wishes of all ranks together, which do not differ.
    pub fn of<'a>(
        ranks: impl Iterator<Item = (u16, &'a Wishes)> + Clone,
        limits: &Limits,
    ) -> Result<Terms, Refusal> {
        let asked = |wish: fn(&Wishes) -> Option<u16>| ranks.clone().find_map(|(_, wishes)| wish(wishes));
        let elements = asked(|wishes| wishes.elements);
        if let Some(wanted) = elements.filter(|wanted| *wanted > limits.elements) {
            return Err(limits.refuse(wanted));
        }
        let elements = least(ranks.clone(), elements, limits.elements, "chunk elements", |w| w.max_elements)?;
        let shards = asked(|wishes| wishes.shards);
        if let Some(shards) = shards.filter(|shards| *shards > limits.shards) {
            let what = format!("{shards} shards: the aggregators have {}; ask for fewer", limits.shards);
            return Err(Refusal::Invalid { what });
        }
        let shards = least(ranks.clone(), shards, limits.shards, "shards", |w| w.max_shards)?;
        let mut wishes = ranks.clone().map(|(_, wishes)| wishes);
        Ok(Terms {
            elements,
            shards,
            slots: wishes.clone().find_map(|wishes| wishes.lane_slots()),
            dynamic: Terms::mode(wishes.clone()).dynamic(),
            checksum: wishes.clone().any(|wishes| wishes.checksum),
            order: wishes.next().map_or(OperationOrder::Submission, |wishes| wishes.order),
        })
    }
}

/// What was asked for, if every rank has as much; else the least that any has.
fn least<'a>(
    ranks: impl Iterator<Item = (u16, &'a Wishes)>,
    asked: Option<u16>,
    limit: u16,
    what: &str,
    most: fn(&Wishes) -> u16,
) -> Result<u16, Refusal> {
    let Some((rank, least)) = ranks.map(|(rank, wishes)| (rank, most(wishes))).min_by_key(|(_, most)| *most)
    else {
        return Ok(limit);
    };
    match asked {
        Some(asked) if asked > least => Err(Refusal::Invalid {
            what: format!("{asked} {what} were asked for, but rank {rank} has at most {least}"),
        }),
        Some(asked) => Ok(asked),
        None => Ok(least.min(limit)),
    }
}

fn text(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn scaling(scaling: Scale) -> String {
    match scaling {
        Scale::Fixed(scale) => format!("by the fixed factor {scale}"),
        Scale::Block => "by block".into(),
    }
}

fn wire(wire: WireFormat) -> String {
    match wire {
        WireFormat::Int32 => "int32".into(),
        WireFormat::Int16 => "int16".into(),
    }
}

fn not_finite(policy: NonFinitePolicy) -> String {
    match policy {
        NonFinitePolicy::Error => "error".into(),
        NonFinitePolicy::Carry => "carry".into(),
    }
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Static => "static".into(),
        Mode::Dynamic(_) => "dynamic".into(),
    }
}

fn order(order: OperationOrder) -> String {
    match order {
        OperationOrder::Submission => "by submission".into(),
        OperationOrder::Name => "by name".into(),
    }
}
