//! XDP modes: the one asked for, and the one bound.

use std::fmt;

use serde::Serialize;

/// The XDP mode that the operator asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// In the driver; where it has no XDP, in the generic receive path, with a warning
    #[default]
    Auto,
    /// In the driver, or fail
    Driver,
    /// In the kernel's generic receive path: slow, and works with every driver
    Generic,
}

impl XdpMode {
    /// Whether a program bound in `mode` may stay on its link.
    pub fn accepts(self, mode: BoundXdpMode) -> bool {
        (self == Self::Generic) == (mode == BoundXdpMode::Generic)
    }
}

/// The XDP mode that the kernel reports for an attached program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BoundXdpMode {
    Driver,
    Generic,
    /// On the NIC.
    Hardware,
}

impl BoundXdpMode {
    /// `driver`, `generic` or `hardware`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Generic => "generic",
            Self::Hardware => "hardware",
        }
    }
}

impl fmt::Display for BoundXdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_between_generic_and_driver_needs_a_new_link() {
        for mode in [XdpMode::Auto, XdpMode::Driver, XdpMode::Generic] {
            assert_eq!(mode.accepts(BoundXdpMode::Generic), mode == XdpMode::Generic, "{mode:?}");
            assert_eq!(mode.accepts(BoundXdpMode::Driver), mode != XdpMode::Generic, "{mode:?}");
        }
    }
}
