//! The mode that the operator asks for on a worker's host: of the XDP program and of the AF_XDP sockets.

use std::fmt;

use serde::{Deserialize, Serialize};
use sumac_loader::XdpMode;

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum HostMode {
    /// XDP in the driver and zero-copy sockets; every fallback is reported
    #[default]
    Auto,
    /// XDP in the driver and zero-copy sockets, or fail
    ZeroCopy,
    /// XDP in the driver and sockets in copy mode, or fail
    Copy,
    /// XDP in the kernel's receive path, after the driver: slow, and works with every driver
    Generic,
}

impl HostMode {
    pub const ALL: [Self; 4] = [Self::Auto, Self::ZeroCopy, Self::Copy, Self::Generic];

    pub fn xdp(self) -> XdpMode {
        match self {
            Self::Auto => XdpMode::Auto,
            Self::ZeroCopy | Self::Copy => XdpMode::Driver,
            Self::Generic => XdpMode::Generic,
        }
    }

    pub(crate) const fn number(self) -> u32 {
        self as u32
    }

    /// Returns the mode with this number; [`HostMode::Auto`] for a number of a later version.
    pub(crate) fn from_number(number: u32) -> Self {
        Self::ALL.into_iter().find(|mode| mode.number() == number).unwrap_or_default()
    }
}

impl fmt::Display for HostMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::ZeroCopy => "zerocopy",
            Self::Copy => "copy",
            Self::Generic => "generic",
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn values_are_displayed_as_they_are_parsed() {
        for mode in HostMode::ALL {
            assert_eq!(HostMode::from_str(&mode.to_string(), false), Ok(mode));
        }
    }
}
