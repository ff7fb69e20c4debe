//! The operations that all workers of a job do together.

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements, in the byte order of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 single precision.
    Float32,
    /// IEEE 754 half precision.
    Float16,
    /// The upper half of a single precision number.
    Bfloat16,
    /// Two's complement, 32 bits.
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

    /// The type as it stands in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::Float32 => "float32",
            DType::Float16 => "float16",
            DType::Bfloat16 => "bfloat16",
            DType::Int32 => "int32",
        }
    }
}

/// What is made of the workers' values at one place of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

impl Reduction {
    /// The reduction as it stands in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Min => "min",
            Reduction::Max => "max",
        }
    }
}

/// Which operation: what each worker gives, and who gets what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All give a tensor, all get the reduction.
    Allreduce,
    /// The root gives a tensor, all get it.
    Broadcast,
    /// All give a tensor, the root gets the reduction.
    Reduce,
    /// All give a tensor, each gets its own block of the reduction.
    ReduceScatter,
    /// Each gives its own block, all get all blocks.
    Allgather,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] =
        [Kind::Allreduce, Kind::Broadcast, Kind::Reduce, Kind::ReduceScatter, Kind::Allgather];

    /// The command's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Allreduce => "allreduce",
            Kind::Broadcast => "broadcast",
            Kind::Reduce => "reduce",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::Allgather => "allgather",
        }
    }

    /// Whether values are reduced, rather than moved.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Kind::Allreduce | Kind::Reduce | Kind::ReduceScatter)
    }

    /// Whether one worker has a part of its own in it.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce)
    }

    /// Whether the tensor is divided into a block for each worker.
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(self, Kind::ReduceScatter | Kind::Allgather)
    }
}

/// An operation on a tensor; which one says the command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collective {
    /// The job's handle, from `open` or `attach`.
    pub job: u64,
    /// The region that holds the input.
    pub region: u64,
    /// The elements' type.
    pub dtype: DType,
    /// Where the tensor, or this worker's input, starts, in bytes.
    pub offset: u64,
    /// Elements of the whole tensor, that of all blocks together.
    pub count: u64,
    /// The region that takes the result; without it the input's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_region: Option<u64>,
    /// Where the result goes, in bytes; without it in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_offset: Option<u64>,
    /// How values are reduced; only where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reduction>,
    /// The rank that gives (`broadcast`) or gets (`reduce`); only there, and necessary there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u16>,
    /// The operation's name, the same on all workers; necessary in a job in order of names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 0 (least) to 7 (most urgent).
    #[serde(default)]
    pub priority: u8,
    /// The fraction of contributions that may be missing.
    #[serde(default)]
    pub loss_bound: f32,
}

impl Collective {
    /// A field that this kind of operation does not have, or lacks, in words.
    pub(crate) fn misfit(&self, kind: Kind) -> Option<&'static str> {
        match (kind.has_root(), self.root.is_some(), kind.reduces() || self.reduction.is_none()) {
            (true, false, _) => Some("missing field `root`"),
            (false, true, _) => Some("unknown field `root`"),
            (_, _, false) => Some("unknown field `reduction`"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_in_json() {
        for dtype in [DType::Float32, DType::Float16, DType::Bfloat16, DType::Int32] {
            assert_eq!(serde_json::to_value(dtype).unwrap(), dtype.name());
        }
        for reduction in [Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max] {
            assert_eq!(serde_json::to_value(reduction).unwrap(), reduction.name());
        }
    }

    #[test]
    fn each_kind_has_its_fields() {
        let ask = |root, reduction| Collective {
            job: 1,
            region: 2,
            dtype: DType::Float16,
            offset: 0,
            count: 4,
            out_region: None,
            out_offset: None,
            reduction,
            root,
            name: None,
            priority: 0,
            loss_bound: 0.0,
        };
        let cases = [
            (Kind::Allreduce, None, Some(Reduction::Min), true),
            (Kind::Allreduce, Some(0), None, false),
            (Kind::Broadcast, Some(0), None, true),
            (Kind::Broadcast, None, None, false),
            (Kind::Broadcast, Some(0), Some(Reduction::Sum), false),
            (Kind::Reduce, Some(1), Some(Reduction::Mean), true),
            (Kind::ReduceScatter, None, None, true),
            (Kind::Allgather, None, Some(Reduction::Sum), false),
            (Kind::Allgather, None, None, true),
        ];
        for (kind, root, reduction, fits) in cases {
            assert_eq!(ask(root, reduction).misfit(kind).is_none(), fits, "{kind:?} {root:?} {reduction:?}");
        }
    }
}
