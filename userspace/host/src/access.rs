//! Access: the users that may open a job under a secret of the daemon's, by the rules of the configuration.

use std::fmt;

use serde::{Deserialize, Serialize};
use sumac_api::{Code, Failure};

use crate::job_pattern::JobPattern;

/// The user that has connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub pid: i32,
    pub uid: u32,
    /// The primary group, then the supplementary ones.
    pub groups: Vec<u32>,
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.pid, self.uid)
    }
}

/// A rule whose names are resolved.
#[derive(Clone, Debug)]
pub struct AccessRule {
    pub users: Vec<u32>,
    pub groups: Vec<u32>,
    pub jobs: Vec<JobPattern>,
}

impl AccessRule {
    fn is_for(&self, peer: &Credentials) -> bool {
        self.users.contains(&peer.uid) || self.groups.iter().any(|group| peer.groups.contains(group))
    }

    fn has_job(&self, job: &str, user: &str) -> bool {
        self.jobs.iter().any(|pattern| pattern.matches(job, user))
    }
}

/// The rules of the configuration.
#[derive(Clone, Debug)]
pub struct AccessRules {
    /// The daemon's user, which needs no rule, as root needs none.
    pub own: u32,
    pub rules: Vec<AccessRule>,
}

impl AccessRules {
    /// Checks whether a user may open a job of this name under a secret of the daemon's. `user`: the user's
    /// name.
    ///
    /// # Errors
    /// The refusal, with the patterns that the user has.
    pub fn check(&self, peer: &Credentials, user: &str, job: &str) -> Result<(), Failure> {
        if peer.uid == 0 || peer.uid == self.own {
            return Ok(());
        }
        if self.rules.iter().any(|rule| rule.is_for(peer) && rule.has_job(job, user)) {
            return Ok(());
        }
        let theirs: Vec<_> =
            self.rules.iter().filter(|rule| rule.is_for(peer)).flat_map(|rule| &rule.jobs).collect();
        let why = match &theirs[..] {
            [] if self.rules.is_empty() => "there is no access rule".to_owned(),
            [] => "no access rule is for this user or its groups".to_owned(),
            patterns => format!("the access rules for this user are for jobs named {patterns:?}"),
        };
        let message = format!("user {user} may not open job {job:?} under the daemon's secret: {why}");
        Err(Failure::new(Code::Denied, message).hint(
            "give the job's own `secret`, or have `[[allow]]` with `users` or `groups`, and `jobs`, added to \
            the daemon's configuration",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, groups: &[u32]) -> Credentials {
        Credentials { pid: 1, uid, groups: groups.into() }
    }

    fn rule(users: &[u32], groups: &[u32], jobs: &[&str]) -> AccessRule {
        let jobs = jobs.iter().map(|&job| JobPattern::parse(job).unwrap()).collect();
        AccessRule { users: users.into(), groups: groups.into(), jobs }
    }

    #[test]
    fn a_user_opens_what_a_rule_lets_it_open() {
        let rules = vec![rule(&[70001], &[], &["a-*", "exact"]), rule(&[], &[70100], &["{user}:*"])];
        let rules = AccessRules { own: 70009, rules };
        let cases = [
            ("root", peer(0, &[0]), "anything", true),
            ("the daemon's user", peer(70009, &[1]), "anything", true),
            ("a pattern", peer(70001, &[1]), "a-1", true),
            ("a name", peer(70001, &[1]), "exact", true),
            ("another name", peer(70001, &[1]), "b-1", false),
            ("a name that only begins so", peer(70001, &[1]), "exactly", false),
            ("another user", peer(70002, &[1]), "a-1", false),
            ("the primary group", peer(70003, &[70100]), "70003:1", true),
            ("a supplementary group", peer(70003, &[1, 2, 70100]), "70003:1", true),
            ("a group's other user's job", peer(70003, &[1, 70100]), "70004:1", false),
            ("not in the group", peer(70003, &[1, 2]), "70003:1", false),
            ("a user id that is a group's", peer(70100, &[1]), "70100:1", false),
        ];
        for (name, peer, job, may) in cases {
            assert_eq!(rules.check(&peer, &peer.uid.to_string(), job).is_ok(), may, "{name}");
        }
    }

    #[test]
    fn without_rules_only_root_and_the_daemons_user_open() {
        let rules = AccessRules { own: 5, rules: Vec::new() };
        assert!(
            rules.check(&peer(0, &[0]), "root", "x").is_ok() && rules.check(&peer(5, &[5]), "5", "x").is_ok()
        );
        let refused = rules.check(&peer(70001, &[0]), "70001", "x").unwrap_err();
        assert_eq!(refused.code, Code::Denied);
        assert!(
            refused.message.contains("no access rule") && refused.hint.contains("[[allow]]"),
            "{refused}"
        );
    }

    #[test]
    fn a_refusal_names_the_patterns_of_the_user() {
        let rules = AccessRules { own: 5, rules: vec![rule(&[70001], &[], &["a-*"])] };
        let refused = rules.check(&peer(70001, &[]), "70001", "b").unwrap_err().to_string();
        assert!(refused.contains("a-*") && refused.contains("70001"), "{refused}");
    }
}
