//! The description of an operation, from the local API to the engine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The lowest priority whose operations overtake those below it.
const URGENT: u8 = 4;

/// The type of a tensor's elements, in the machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 single precision.
    Float32,
    /// IEEE 754 half precision.
    Float16,
    /// The upper half of a single-precision float.
    Bfloat16,
    /// Two's complement, 32 bits. In static mode each worker's values must be within `(2^31 - 1) / workers`
    /// for sums.
    Int32,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::Float32 | DType::Int32 => 4,
            DType::Float16 | DType::Bfloat16 => 2,
        }
    }
}

/// The function by which the workers' values at one place of a tensor become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// Their sum.
    #[default]
    Sum,
    /// Their sum divided by their number.
    Mean,
    /// The least.
    Min,
    /// The greatest.
    Max,
}

/// The way in which an operation's packets are distinguished by importance, so that routers drop unimportant
/// ones first (MLT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum Importance {
    /// They are not.
    #[default]
    None,
    /// By the mean magnitude of their values: those that reach the median of a sample of the tensor are
    /// important.
    Magnitude,
    /// All are important.
    High,
    /// None is important.
    Low,
}

impl Importance {
    /// Whether this is the default.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Importance::None
    }
}

/// The kind of a collective operation: which values each worker contributes and which results it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// All contribute a tensor, all get the reduction.
    Allreduce,
    /// The root contributes a tensor, all get it.
    Broadcast,
    /// All contribute a tensor, the root gets the reduction.
    Reduce,
    /// All contribute a tensor, each gets its own block of the reduction.
    ReduceScatter,
    /// Each contributes its own block, all get all blocks.
    Allgather,
}

impl CollectiveKind {
    /// Whether values are reduced, rather than moved.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, CollectiveKind::Allreduce | CollectiveKind::Reduce | CollectiveKind::ReduceScatter)
    }

    /// Whether one worker has a part of its own in it.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, CollectiveKind::Broadcast | CollectiveKind::Reduce)
    }

    /// Whether the tensor is divided into a block for each worker.
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(self, CollectiveKind::ReduceScatter | CollectiveKind::Allgather)
    }
}

/// The number of an operation in its job: each worker counts the operations of the job from 0 as they take
/// effect, and it wraps. Two workers' operations with equal ids must be equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(pub u32);

impl OperationId {
    /// The id of the operation after this one.
    #[must_use]
    pub const fn next(self) -> OperationId {
        OperationId(self.0.wrapping_add(1))
    }

    /// Returns the number of operations from `first` to this one, modulo 2^32.
    #[must_use]
    pub const fn since(self, first: OperationId) -> u32 {
        self.0.wrapping_sub(first.0)
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The position at which a worker that takes another one's rank continues the stream of operations (ATP
/// appendix A.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// The first operation that is not summed.
    pub operation: OperationId,
    /// By lane: the chunk that comes next before that operation is placed.
    pub next: Vec<u32>,
    /// By shard: chunks that it was given before that, beyond the shard with the fewest.
    pub loads: Vec<u64>,
}

/// The fraction of its elements that each worker may be left out with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LossBound(u32);

impl LossBound {
    /// The bound of this fraction.
    #[must_use]
    pub const fn new(fraction: f32) -> LossBound {
        // Zero has two forms.
        LossBound(if fraction == 0.0 { 0 } else { fraction.to_bits() })
    }

    /// The fraction; 0: no worker is left out.
    #[must_use]
    pub const fn fraction(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// The properties of an operation that must be equal on all workers.
///
/// `Display` writes them as `docs/api.md` gives them: two descriptors are equal if and only if their texts
/// are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OperationDescriptor {
    /// The kind of operation.
    pub kind: CollectiveKind,
    /// The reduction; [`Reduction::Sum`] where nothing is reduced.
    pub reduction: Reduction,
    /// The elements' type.
    pub dtype: DType,
    /// Elements of the whole tensor, that of all blocks together.
    pub count: u64,
    /// The rank that contributes (`broadcast`) or gets the result (`reduce`).
    pub root: Option<u16>,
    /// The operation's name.
    pub name: Option<String>,
    /// Whether it overtakes the operations that are not urgent.
    pub is_urgent: bool,
    /// The loss bound.
    pub loss_bound: LossBound,
}

impl OperationDescriptor {
    /// Whether operations of a priority from 0 (least) to 7 overtake those that are not urgent.
    #[must_use]
    pub const fn is_urgent(priority: u8) -> bool {
        priority >= URGENT
    }

    /// FNV-1a, 32 bits, of the descriptor's text with its id: the field `tensor` of the job's packets, by
    /// which aggregators tell one operation from another.
    #[must_use]
    pub fn signature(&self, id: OperationId) -> u32 {
        signature(&format!("{id} {self}"))
    }

    /// FNV-1a, 32 bits, of the descriptor's text alone, for operations that are matched by name.
    #[must_use]
    pub fn unnumbered_signature(&self) -> u32 {
        signature(&self.to_string())
    }

    /// The tensor's name in errors: the operation's name, or its id where it has none.
    #[must_use]
    pub fn tensor(&self, id: OperationId) -> String {
        self.name.clone().unwrap_or_else(|| id.to_string())
    }
}

impl fmt::Display for OperationDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if self.kind.reduces() {
            write!(f, " {}", self.reduction.name())?;
        }
        write!(f, " {}[{}]", self.dtype.name(), self.count)?;
        if let Some(root) = self.root {
            write!(f, " root {root}")?;
        }
        if self.is_urgent {
            f.write_str(" urgent")?;
        }
        if self.loss_bound != LossBound::default() {
            write!(f, " loss bound {}", self.loss_bound.fraction())?;
        }
        match &self.name {
            Some(name) => write!(f, " {name:?}"),
            None => Ok(()),
        }
    }
}

fn signature(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum() -> OperationDescriptor {
        OperationDescriptor {
            kind: CollectiveKind::Allreduce,
            reduction: Reduction::Sum,
            dtype: DType::Float32,
            count: 1000,
            root: None,
            name: None,
            is_urgent: false,
            loss_bound: LossBound::new(0.0),
        }
    }

    #[test]
    fn the_text_is_that_of_the_documentation() {
        assert_eq!(format!("{} {}", OperationId(5), sum()), "#5 allreduce sum float32[1000]");
        let broadcast = OperationDescriptor {
            kind: CollectiveKind::Broadcast,
            dtype: DType::Bfloat16,
            root: Some(2),
            name: Some("layer \"1\"".into()),
            is_urgent: true,
            ..sum()
        };
        assert_eq!(broadcast.to_string(), r#"broadcast bfloat16[1000] root 2 urgent "layer \"1\"""#);
        let bounded = OperationDescriptor { loss_bound: LossBound::new(0.1), ..sum() };
        assert_eq!(bounded.to_string(), "allreduce sum float32[1000] loss bound 0.1");
        let id = OperationId(5);
        assert_eq!((broadcast.tensor(id).as_str(), sum().tensor(id).as_str()), ("layer \"1\"", "#5"));
    }

    #[test]
    fn the_signature_is_fnv_1a() {
        // The published vectors.
        assert_eq!(
            [signature(""), signature("a"), signature("foobar")],
            [0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968]
        );
    }

    #[test]
    fn whatever_differs_has_another_signature() {
        let others = [
            OperationDescriptor { kind: CollectiveKind::ReduceScatter, ..sum() },
            OperationDescriptor { reduction: Reduction::Max, ..sum() },
            OperationDescriptor { dtype: DType::Int32, ..sum() },
            OperationDescriptor { count: 1001, ..sum() },
            OperationDescriptor { root: Some(0), kind: CollectiveKind::Reduce, ..sum() },
            OperationDescriptor { name: Some("a".into()), ..sum() },
            OperationDescriptor { name: Some("b".into()), ..sum() },
            OperationDescriptor { is_urgent: true, ..sum() },
            OperationDescriptor { loss_bound: LossBound::new(0.1), ..sum() },
            OperationDescriptor { loss_bound: LossBound::new(0.3), ..sum() },
        ];
        assert_eq!(LossBound::new(-0.0), LossBound::default());
        let all = others.iter().chain([&sum()]).cloned().collect::<Vec<_>>();
        let mut seen: Vec<u32> = all.iter().map(|each| each.signature(OperationId(1))).collect();
        seen.extend(all.iter().map(|each| each.signature(OperationId(2))));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 2 * all.len());
    }
}
