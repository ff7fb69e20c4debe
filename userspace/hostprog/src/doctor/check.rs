//! A check's outcome, and the subject of an examination.

use std::path::PathBuf;

use serde::Serialize;
use sumac_loader::DEFAULT_PIN_ROOT;
use sumac_wire::DEFAULT_ELEMENTS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Ok,
    /// Works, but slower or less safely than possible, or may fail later.
    Warn,
    /// Will not work.
    Fail,
}

impl Severity {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub level: Severity,
    pub found: String,
    /// The remedy, as a command where there is one.
    /// `mend` in the output of `--json` since the first version.
    #[serde(rename = "mend", skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(found: impl Into<String>) -> Self {
        Self { name: "", level: Severity::Ok, found: found.into(), remedy: None }
    }

    pub(super) fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Severity::Warn, remedy: Some(remedy.into()), ..Self::ok(found) }
    }

    pub(super) fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Severity::Fail, ..Self::warn(found, remedy) }
    }

    pub(super) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

#[derive(Clone, Debug)]
pub struct Subject {
    /// The interface towards the aggregator; without it only the system is examined.
    pub interface: Option<String>,
    /// The elements in a chunk, for the check of the MTU.
    pub elements: u16,
    pub pin_root: PathBuf,
}

impl Default for Subject {
    fn default() -> Self {
        Self { interface: None, elements: DEFAULT_ELEMENTS, pin_root: DEFAULT_PIN_ROOT.into() }
    }
}
