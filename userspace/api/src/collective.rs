//! The operations that all workers of a job do together.

use serde::{Deserialize, Serialize};
use sumac_job::{CollectiveKind, DType, OperationDescriptor, Reduction};

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
    /// The properties that must be equal on all workers.
    #[must_use]
    pub fn descriptor(&self, kind: CollectiveKind) -> OperationDescriptor {
        OperationDescriptor {
            kind,
            reduction: self.reduction.unwrap_or_default(),
            dtype: self.dtype,
            count: self.count,
            root: self.root,
            name: self.name.clone(),
            is_urgent: OperationDescriptor::is_urgent(self.priority),
        }
    }

    /// A field that this kind of operation does not have, or lacks, in words.
    pub(crate) fn misfit(&self, kind: CollectiveKind) -> Option<&'static str> {
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
            (CollectiveKind::Allreduce, None, Some(Reduction::Min), true),
            (CollectiveKind::Allreduce, Some(0), None, false),
            (CollectiveKind::Broadcast, Some(0), None, true),
            (CollectiveKind::Broadcast, None, None, false),
            (CollectiveKind::Broadcast, Some(0), Some(Reduction::Sum), false),
            (CollectiveKind::Reduce, Some(1), Some(Reduction::Mean), true),
            (CollectiveKind::ReduceScatter, None, None, true),
            (CollectiveKind::Allgather, None, Some(Reduction::Sum), false),
            (CollectiveKind::Allgather, None, None, true),
        ];
        for (kind, root, reduction, fits) in cases {
            assert_eq!(ask(root, reduction).misfit(kind).is_none(), fits, "{kind:?} {root:?} {reduction:?}");
        }
    }
}
