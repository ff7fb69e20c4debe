//! Rates and probabilities as people write them: `1gbit`, `100mbit`, `1%`, `0.01`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, anyhow, ensure};

/// Bits per second of a cable, each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rate(pub u64);

impl FromStr for Rate {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Rate> {
        let error = || anyhow!("{text:?} is not a rate; write for example 100mbit, 1gbit or 2.5gbit");
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits);
        let factor = match unit {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(error()),
        };
        let bits = number.parse::<f64>().map_err(|_| error())? * factor;
        // Less than 64 kbit/s does not carry the control plane; more than 1 Tbit/s no machine shapes.
        ensure!((64e3..=1e12).contains(&bits), error());
        Ok(Rate(bits.round() as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bits if bits.is_multiple_of(1_000_000_000) => write!(f, "{}gbit", bits / 1_000_000_000),
            bits if bits.is_multiple_of(1_000_000) => write!(f, "{}mbit", bits / 1_000_000),
            bits => write!(f, "{bits}bit"),
        }
    }
}

/// A probability in millionths, which is how nftables draws it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Probability(pub u32);

impl Probability {
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl FromStr for Probability {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Probability> {
        let error = || anyhow!("{text:?} is not a probability; write for example 1% or 0.01, at most 50%");
        let trimmed = text.trim();
        let value = match trimmed.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().map_err(|_| error())? / 100.0,
            None => trimmed.parse::<f64>().map_err(|_| error())?,
        };
        ensure!((0.0..=0.5).contains(&value), error());
        Ok(Probability((value * 1e6).round() as u32))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, bits) in [("1gbit", 1_000_000_000), ("100Mbit", 100_000_000), ("2.5gbit", 2_500_000_000)] {
            assert_eq!(text.parse().ok(), Some(Rate(bits)), "{text}");
        }
        for text in ["", "1", "gbit", "1gb", "-1gbit", "0gbit", "1e3gbit", "infgbit"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert_eq!(Rate(100_000_000).to_string(), "100mbit");
    }

    #[test]
    fn probabilities() {
        for (text, millionths) in
            [("1%", 10_000), ("0.01%", 100), ("0.01", 10_000), ("0", 0), ("50%", 500_000)]
        {
            assert_eq!(text.parse().ok(), Some(Probability(millionths)), "{text}");
        }
        for text in ["", "%", "51%", "-1%", "NaN", "1 percent"] {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
        assert_eq!(Probability(100).to_string(), "0.01%");
    }
}
