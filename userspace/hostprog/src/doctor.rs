//! Finds what usually goes wrong, and says how to mend it.

mod interface;
mod irq;
mod offloads;
mod steering;
mod system;

use std::path::PathBuf;

use serde::Serialize;
use sumac_wire::DEFAULT_ELEMENTS;

use crate::pins::DEFAULT_PIN_ROOT;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but slower or less safely than it could, or may fail later.
    Warn,
    /// Will not work.
    Fail,
}

impl Level {
    /// The word for it in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What, in one word.
    pub name: &'static str,
    /// How it went.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it, as a command where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::Ok, found: found.into(), mend: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, level: Level::Warn, found: found.into(), mend: Some(mend.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, level: Level::Fail, found: found.into(), mend: Some(mend.into()) }
    }
}

/// What to look at.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The interface that leads to the aggregator; without it only the system is examined.
    pub interface: Option<String>,
    /// Elements in a chunk.
    pub elements: u16,
    /// Where pins are.
    pub pin_root: PathBuf,
}

impl Default for Subject {
    fn default() -> Self {
        Self { interface: None, elements: DEFAULT_ELEMENTS, pin_root: DEFAULT_PIN_ROOT.into() }
    }
}

/// Looks at everything. Changes nothing, and never fails: what cannot be looked at is a finding too.
#[must_use]
pub fn examine(subject: &Subject) -> Vec<Check> {
    let mut checks = system::examine(&subject.pin_root);
    if let Some(name) = &subject.interface {
        checks.extend(interface::examine(name, subject));
    }
    checks
}
