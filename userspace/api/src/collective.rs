//! Collective operations.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use sumac_job::{CollectiveKind, DType, Importance, LossBound, OperationDescriptor, Reduction};

/// An operation on a tensor; the command is its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collective {
    /// The job's handle, from `open` or `attach`.
    pub job: u64,
    /// The input's region.
    pub region: u64,
    /// The elements' type.
    pub dtype: DType,
    /// The offset of the tensor, or of this worker's input, in bytes.
    pub offset: u64,
    /// Elements of the whole tensor, all blocks together.
    pub count: u64,
    /// The result's region; default: the input's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_region: Option<u64>,
    /// The result's offset, in bytes; default: in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_offset: Option<u64>,
    /// The reduction; only for kinds that reduce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reduction>,
    /// The rank that contributes (`broadcast`) or receives (`reduce`); required there, else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u16>,
    /// The operation's name, the same on all workers; required with [`sumac_job::OperationOrder::Name`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The priority, 0 (lowest) to 7.
    #[serde(default)]
    pub priority: u8,
    /// The way in which its packets are told apart by importance; may differ between workers.
    #[serde(default, skip_serializing_if = "Importance::is_none")]
    pub importance: Importance,
    /// The fraction of its elements that each worker may be left out with.
    #[serde(default, deserialize_with = "finite")]
    pub loss_bound: f32,
    /// The offset of its completion word in the output's region: 64 bits, which the daemon sets to
    /// [`WORD_COMPLETE`] or
    /// [`WORD_FAILED`] when the operation has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_word: Option<u64>,
    /// Whether its end has the times of its steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timing: bool,
}

/// The completion word of an operation whose result is in memory. The client sets it to 0 before.
pub const WORD_COMPLETE: u64 = 1;

/// The completion word of an operation that has failed; its end has the reason.
pub const WORD_FAILED: u64 = 2;

/// A number that is too large for its type would be read as infinity, which has no JSON form.
pub(crate) fn finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let number = f32::deserialize(deserializer)?;
    if number.is_finite() { Ok(number) } else { Err(D::Error::custom("the number is too large")) }
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
            loss_bound: LossBound::new(self.loss_bound),
        }
    }

    /// Returns the problem of a field that this kind of operation lacks or does not have.
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
        let operation = |root, reduction| Collective {
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
            importance: Importance::None,
            loss_bound: 0.0,
            completion_word: None,
            timing: false,
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
            assert_eq!(
                operation(root, reduction).misfit(kind).is_none(),
                fits,
                "{kind:?} {root:?} {reduction:?}"
            );
        }
    }
}
