//! Options that are the same on all workers of a job.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::DType;

/// Use of the aggregators' slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A range of slots is the job's own (SwitchML).
    #[default]
    Static,
    /// Jobs share slots by hashing; parameter hosts sum the chunks that find none (ATP).
    Dynamic,
    /// No slots: tensors go from worker to worker (MLT).
    Direct,
}

/// The way of the values of a direct job's collective operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// Blocks of the tensor have owners, which reduce and distribute them: a parameter server whose hosts are
    /// workers, or servers of the job.
    #[default]
    Owners,
    /// Blocks go around the ring of workers, where all workers take them; as `owners` elsewhere.
    Ring,
}

/// The factor by which floats are multiplied before they are rounded to integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Always this number, positive and normal. A value that becomes too large is reported as saturated.
    Fixed(f32),
    /// The largest factor that the chunk's shared exponent allows (block floating point).
    Block,
}

impl Scale {
    const BLOCK: &str = "block";
}

impl Serialize for Scale {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Scale::Fixed(factor) => serializer.serialize_f32(*factor),
            Scale::Block => serializer.serialize_str(Scale::BLOCK),
        }
    }
}

impl<'de> Deserialize<'de> for Scale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scale, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f32),
            Text(String),
        }
        let expected = "a number or \"block\"";
        match Form::deserialize(deserializer).map_err(|_| D::Error::custom(format!("expected {expected}")))? {
            // A number that is too large for its type is read as infinity, which has no JSON form.
            Form::Number(factor) if !factor.is_finite() => {
                Err(D::Error::custom("scale: the number is too large"))
            }
            Form::Number(factor) => Ok(Scale::Fixed(factor)),
            Form::Text(text) if text == Scale::BLOCK => Ok(Scale::Block),
            Form::Text(text) => Err(D::Error::custom(format!("scale {text:?}: expected {expected}"))),
        }
    }
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Scale, String> {
        match (text, text.parse::<f32>()) {
            (Scale::BLOCK, _) => Ok(Scale::Block),
            (_, Ok(factor)) if factor.is_finite() => Ok(Scale::Fixed(factor)),
            _ => Err(format!("expected a number or {:?}", Scale::BLOCK)),
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scale::Fixed(factor) => write!(f, "by the fixed factor {factor}"),
            Scale::Block => f.write_str("by block"),
        }
    }
}

/// The format of sums of floats in packets. Other operations are not affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum WireFormat {
    /// A 32-bit integer each.
    #[default]
    Int32,
    /// A 16-bit integer each, two in a word: half the bytes, and a larger error.
    ///
    /// With block floating point a sum of `n` workers is off by at most `n / f = n^2 2^m / (2^15 - 1)`, where
    /// `2^m` is less than twice the largest magnitude `h` of the chunk, so by at most `n^2 h / 16383`:
    /// 0.1 % of h for 4 workers, 0.4 % for 8, 6.3 % for 32, whatever the value's own size. Rounding
    /// errors mostly cancel: typical is `sqrt(n / 12) / f`, which is 0.02 % of h for 8 workers.
    /// [`WireFormat::Int32`] has the same bound over `2^31 - 1`: 65,538 times smaller.
    Int16,
    /// As int16 for bfloat16 of up to 7 workers and float16 of 2, scaled by block; else as int32.
    ///
    /// There the bound is at most half a unit in the last place of `h` in the tensor's own type. Smaller
    /// values lose more than in [`WireFormat::Int32`], which keeps their type's precision down to `h / 2^16`.
    Auto,
}

impl WireFormat {
    /// Whether each value of a sum has 16 bits, among so many workers.
    // It is asked for several times for each packet.
    #[inline]
    pub fn is_16_bits(self, dtype: DType, scale: Scale, workers: u16) -> bool {
        match (self, dtype) {
            (_, DType::Int32) | (WireFormat::Int32, _) | (WireFormat::Auto, DType::Float32) => false,
            (WireFormat::Int16, _) => true,
            // A fixed scale has no bound in units of the type, and 16 bits would leave it little range.
            (WireFormat::Auto, _) if !matches!(scale, Scale::Block) => false,
            // `n^2 2^m / (2^15 - 1)` is at most half of the distance of values just above `2^(m - 1)`, which
            // is `2^(m - 8)` for the 8 bits of bfloat16, and `2^(m - 11)` for the 11 of float16.
            (WireFormat::Auto, DType::Bfloat16) => workers <= 7,
            (WireFormat::Auto, DType::Float16) => workers <= 2,
        }
    }
}

/// Treatment of NaN and infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum NonFinitePolicy {
    /// The operation fails on all workers, and the error names the element.
    #[default]
    Error,
    /// All elements of the packet are NaN on all workers.
    Carry,
    /// Sums are those of floats: a packet with values that its integers do not hold, which are NaN, infinity
    /// and values far below the packet's largest, goes as floats. A static job leaves its elements to the
    /// clients and names them at the operation's end, so that no command line has it. Maxima and minima have
    /// infinity, and NaN of any worker.
    #[cfg_attr(feature = "clap", value(skip))]
    Raw,
}

/// The rule by which the workers' operations are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum OperationOrder {
    /// The first with the first, the second with the second.
    #[default]
    Submission,
    /// Operations of one name, in whatever order each worker submits them.
    Name,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_number_or_a_word() {
        for (scale, text) in [(Scale::Fixed(0.5), "0.5"), (Scale::Block, "\"block\"")] {
            assert_eq!(serde_json::to_string(&scale).unwrap(), text);
            assert_eq!(serde_json::from_str::<Scale>(text).unwrap(), scale);
        }
        for wrong in ["\"blocks\"", "true", "[1]"] {
            assert!(serde_json::from_str::<Scale>(wrong).unwrap_err().to_string().contains("\"block\""));
        }
        assert!(serde_json::from_str::<Scale>("1e39").unwrap_err().to_string().contains("too large"));
        assert_eq!("block".parse(), Ok(Scale::Block));
        assert_eq!("0.5".parse(), Ok(Scale::Fixed(0.5)));
        for wrong in ["blocks", "1e39", "nan", ""] {
            assert!(wrong.parse::<Scale>().unwrap_err().contains("\"block\""), "{wrong}");
        }
    }
}
