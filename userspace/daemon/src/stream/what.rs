//! What an operation is: the words for people, and the signature by which workers find out that they mean the same.

use sumac_api::{Collective, CollectiveKind, DType, Reduction};

/// From this priority on an operation overtakes those below.
const URGENT: u8 = 4;

/// All that must be the same on all workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct What {
    pub(crate) kind: CollectiveKind,
    pub(crate) reduction: Reduction,
    pub(crate) dtype: DType,
    pub(crate) count: u64,
    pub(crate) root: Option<u16>,
    pub(crate) name: Option<String>,
    pub(crate) is_urgent: bool,
}

impl What {
    pub(crate) fn new(kind: CollectiveKind, ask: &Collective) -> What {
        What {
            kind,
            reduction: ask.reduction.unwrap_or_default(),
            dtype: ask.dtype,
            count: ask.count,
            root: ask.root,
            name: ask.name.clone(),
            is_urgent: ask.priority >= URGENT,
        }
    }

    /// The operation in words, as `docs/api.md` gives them: two operations are the same if and only if the words are.
    pub(crate) fn words(&self) -> String {
        let mut words = self.kind.name().to_owned();
        if self.kind.reduces() {
            words = format!("{words} {}", self.reduction.name());
        }
        words = format!("{words} {}[{}]", self.dtype.name(), self.count);
        if let Some(root) = self.root {
            words = format!("{words} root {root}");
        }
        if self.is_urgent {
            words += " urgent";
        }
        match &self.name {
            Some(name) => format!("{words} {name:?}"),
            None => words,
        }
    }

    /// Elements in a 32-bit word of a packet. `is_short`: the job sends sums of floats as 16-bit integers.
    pub(crate) fn values_per_word(&self, is_short: bool) -> u64 {
        let is_sum = self.kind.reduces() && matches!(self.reduction, Reduction::Sum | Reduction::Mean);
        let is_float = self.dtype != DType::Int32;
        let is_moved = !self.kind.reduces();
        let halves = is_moved && self.dtype.size() == 2 || is_sum && is_float && is_short;
        if halves { 2 } else { 1 }
    }

    /// What an operation's tensor is called in errors: its name, or its number where it has none.
    pub(crate) fn tensor(&self, number: u32) -> String {
        self.name.clone().unwrap_or_else(|| format!("#{number}"))
    }
}

/// The words of the operation with this number in its job.
pub(crate) fn numbered(number: u32, words: &str) -> String {
    format!("#{number} {words}")
}

/// FNV-1a, 32 bits, over the words: what packets carry to tell one operation from another.
pub(crate) fn signature(words: &str) -> u32 {
    words.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum() -> What {
        What {
            kind: CollectiveKind::Allreduce,
            reduction: Reduction::Sum,
            dtype: DType::Float32,
            count: 1000,
            root: None,
            name: None,
            is_urgent: false,
        }
    }

    #[test]
    fn the_words_are_those_of_the_documentation() {
        assert_eq!(numbered(5, &sum().words()), "#5 allreduce sum float32[1000]");
        let broadcast = What {
            kind: CollectiveKind::Broadcast,
            dtype: DType::Bfloat16,
            root: Some(2),
            name: Some("layer \"1\"".into()),
            is_urgent: true,
            ..sum()
        };
        assert_eq!(broadcast.words(), r#"broadcast bfloat16[1000] root 2 urgent "layer \"1\"""#);
        assert_eq!((broadcast.tensor(5).as_str(), sum().tensor(5).as_str()), ("layer \"1\"", "#5"));
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
            What { kind: CollectiveKind::ReduceScatter, ..sum() },
            What { reduction: Reduction::Max, ..sum() },
            What { dtype: DType::Int32, ..sum() },
            What { count: 1001, ..sum() },
            What { root: Some(0), kind: CollectiveKind::Reduce, ..sum() },
            What { name: Some("a".into()), ..sum() },
            What { name: Some("b".into()), ..sum() },
            What { is_urgent: true, ..sum() },
        ];
        let mut seen: Vec<u32> = others.iter().chain([&sum()]).map(|what| signature(&what.words())).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), others.len() + 1);
    }
}
