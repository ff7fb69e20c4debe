//! The rules in the configuration by which users open jobs under the daemon's secrets.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use sumac_host::JobPattern;

/// A user or a group, by name or by number.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Principal {
    Id(u32),
    Name(String),
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Id(id) => id.fmt(f),
            Principal::Name(name) => name.fmt(f),
        }
    }
}

/// Lets users, and members of groups, open the jobs whose names match a pattern.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// Users, by name or number.
    #[serde(default)]
    pub users: Vec<Principal>,
    /// Groups, by name or number; supplementary groups count.
    #[serde(default)]
    pub groups: Vec<Principal>,
    /// Names of jobs, with `*` and `?`; `{user}:` at the beginning is the name of the user. No wildcard
    /// stands for `:`, except that `*` alone is for all names.
    #[schemars(with = "Vec<String>")]
    pub jobs: Vec<JobPattern>,
}

impl AccessRule {
    /// Returns the problem of a rule that cannot be meant.
    pub(super) fn check(&self) -> Result<(), String> {
        let is_for_someone = !self.users.is_empty() || !self.groups.is_empty();
        ensure!(is_for_someone, "has neither `users` nor `groups`".into());
        ensure!(!self.jobs.is_empty(), "has no pattern in `jobs`; [\"*\"] is for all names".into());
        Ok(())
    }
}
