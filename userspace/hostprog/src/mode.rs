//! How the program and the sockets are asked to be bound, and how they were.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What the operator asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The fastest that the driver can: XDP in the driver, zero-copy sockets; every step down is reported.
    #[default]
    Auto,
    /// XDP in the driver and zero-copy sockets, or fail.
    ZeroCopy,
    /// XDP in the driver and sockets in copy mode, or fail.
    Copy,
    /// XDP in the kernel's receive path, after the driver. Slow; works with every driver.
    Generic,
}

/// Where the program really runs, by the kernel's own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BoundMode {
    /// In the driver's receive path.
    Driver,
    /// In the generic receive path.
    Generic,
    /// On the NIC.
    Hardware,
}

/// A word that names no mode.
#[derive(Debug, Error)]
#[error("{0:?} is no mode: use auto, zerocopy, copy or generic")]
pub struct UnknownMode(String);

impl Mode {
    /// All modes, as the command line lists them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::ZeroCopy, Self::Copy, Self::Generic];

    /// The word for it on the command line and in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::ZeroCopy => "zerocopy",
            Self::Copy => "copy",
            Self::Generic => "generic",
        }
    }
}

impl Mode {
    /// Its place in [`Mode::ALL`], for the program's settings.
    #[must_use]
    pub(crate) const fn number(self) -> u32 {
        self as u32
    }

    /// The mode with this number; [`Mode::Auto`] for a number of a later version.
    #[must_use]
    pub(crate) fn from_number(number: u32) -> Self {
        Self::ALL.into_iter().find(|mode| mode.number() == number).unwrap_or_default()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        Self::ALL.into_iter().find(|mode| mode.name() == word).ok_or_else(|| UnknownMode(word.to_owned()))
    }
}

impl BoundMode {
    /// The word for it in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Generic => "generic",
            Self::Hardware => "hardware",
        }
    }
}

impl fmt::Display for BoundMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
