//! Access: the users that may open a job under a secret of the daemon's, by the rules of the configuration.

use std::fmt;

use glob::Pattern;
use nix::unistd::{Gid, Group, Uid, User};
use serde::{Deserialize, Serialize};
use sumac_api::{Code, Failure};

use crate::config::{AccessRule, Principal};

/// The user that has connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// The primary group, then the supplementary ones.
    pub(crate) groups: Vec<u32>,
}

impl Credentials {
    /// `pid`, `uid` and `gid`: of SO_PEERCRED.
    pub(crate) fn new(pid: i32, uid: u32, gid: u32) -> Credentials {
        // The kernel has them in SO_PEERGROUPS, too, which no safe interface returns.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let supplementary = supplementary_groups(&status, uid);
        if supplementary.is_none() {
            tracing::debug!(pid, uid, "the supplementary groups of a trainer cannot be read from /proc");
        }
        let groups = std::iter::once(gid).chain(supplementary.unwrap_or_default()).collect();
        Credentials { pid, uid, groups }
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.pid, self.uid)
    }
}

/// Returns the supplementary groups in the text of `/proc/PID/status`; `None` when the process is another user's, which has
/// the number of one that has ended.
fn supplementary_groups(status: &str, uid: u32) -> Option<Vec<u32>> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let numbers = |text: &str| text.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>().ok();
    numbers(field("Uid:")?)?.contains(&uid).then_some(())?;
    numbers(field("Groups:")?)
}

#[derive(Debug, thiserror::Error)]
#[error("{key}: this host has no {kind} {name:?}; correct the name, or give its number")]
pub struct UnknownPrincipal {
    key: String,
    kind: &'static str,
    name: String,
}

/// A rule whose names are resolved.
#[derive(Debug)]
struct Rule {
    users: Vec<u32>,
    groups: Vec<u32>,
    jobs: Vec<String>,
}

impl Rule {
    fn is_for(&self, peer: &Credentials) -> bool {
        self.users.contains(&peer.uid) || self.groups.iter().any(|group| peer.groups.contains(group))
    }

    fn has_job(&self, job: &str, user: &str) -> bool {
        let user = Pattern::escape(user);
        self.jobs.iter().any(|pattern| {
            Pattern::new(&pattern.replace(crate::config::USER, &user))
                .is_ok_and(|pattern| pattern.matches(job))
        })
    }
}

/// The rules of the configuration.
#[derive(Debug)]
pub(crate) struct AccessRules {
    own: u32,
    rules: Vec<Rule>,
}

impl AccessRules {
    /// `own`: the daemon's user, which needs no rule, as root needs none.
    pub(crate) fn resolve(rules: &[AccessRule], own: u32) -> Result<AccessRules, UnknownPrincipal> {
        let resolve = |(place, rule): (usize, &AccessRule)| {
            let key = |list| format!("allow, rule {}, {list}", place + 1);
            let users = rule.users.iter().map(|user| uid(user, &key("users")));
            let groups = rule.groups.iter().map(|group| gid(group, &key("groups")));
            Ok(Rule {
                users: users.collect::<Result<_, _>>()?,
                groups: groups.collect::<Result<_, _>>()?,
                jobs: rule.jobs.clone(),
            })
        };
        let rules = rules.iter().enumerate().map(resolve).collect::<Result<_, _>>()?;
        Ok(AccessRules { own, rules })
    }

    /// Checks whether a user may open a job of this name under a secret of the daemon's.
    pub(crate) fn check(&self, peer: &Credentials, job: &str) -> Result<(), Failure> {
        if peer.uid == 0 || peer.uid == self.own {
            return Ok(());
        }
        let user = user_name(peer.uid);
        if self.rules.iter().any(|rule| rule.is_for(peer) && rule.has_job(job, &user)) {
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
            "give the job's own `secret`, or have `[[allow]]` with `users` or `groups`, and `jobs`, added to the daemon's \
             configuration",
        ))
    }
}

/// Returns the user's name; the number of one without.
fn user_name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

fn uid(user: &Principal, key: &str) -> Result<u32, UnknownPrincipal> {
    match user {
        Principal::Id(id) => Ok(*id),
        Principal::Name(name) => {
            let found = User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
            found.ok_or_else(|| UnknownPrincipal { key: key.to_owned(), kind: "user", name: name.clone() })
        }
    }
}

/// Returns a group's number. `key`: where the configuration names it.
pub(crate) fn gid(group: &Principal, key: &str) -> Result<u32, UnknownPrincipal> {
    match group {
        Principal::Id(id) => Ok(*id),
        Principal::Name(name) => {
            let found = Group::from_name(name).ok().flatten().map(|group| Gid::as_raw(group.gid));
            found.ok_or_else(|| UnknownPrincipal { key: key.to_owned(), kind: "group", name: name.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, groups: &[u32]) -> Credentials {
        Credentials { pid: 1, uid, groups: groups.into() }
    }

    fn rule(users: &[u32], groups: &[u32], jobs: &[&str]) -> AccessRule {
        let ids = |ids: &[u32]| ids.iter().copied().map(Principal::Id).collect();
        AccessRule {
            users: ids(users),
            groups: ids(groups),
            jobs: jobs.iter().map(|&job| job.into()).collect(),
        }
    }

    #[test]
    fn a_user_opens_what_a_rule_lets_it_open() {
        let rules = [rule(&[70001], &[], &["a-*", "exact"]), rule(&[], &[70100], &["{user}-*"])];
        let rules = AccessRules::resolve(&rules, 70009).unwrap();
        let cases = [
            ("root", peer(0, &[0]), "anything", true),
            ("the daemon's user", peer(70009, &[1]), "anything", true),
            ("a pattern", peer(70001, &[1]), "a-1", true),
            ("a name", peer(70001, &[1]), "exact", true),
            ("another name", peer(70001, &[1]), "b-1", false),
            ("a name that only begins so", peer(70001, &[1]), "exactly", false),
            ("another user", peer(70002, &[1]), "a-1", false),
            ("the primary group", peer(70003, &[70100]), "70003-1", true),
            ("a supplementary group", peer(70003, &[1, 2, 70100]), "70003-1", true),
            ("a group's other user's job", peer(70003, &[1, 70100]), "70004-1", false),
            ("not in the group", peer(70003, &[1, 2]), "70003-1", false),
            ("a user id that is a group's", peer(70100, &[1]), "70100-1", false),
        ];
        for (name, peer, job, may) in cases {
            assert_eq!(rules.check(&peer, job).is_ok(), may, "{name}");
        }
    }

    #[test]
    fn without_rules_only_root_and_the_daemons_user_open() {
        let rules = AccessRules::resolve(&[], 5).unwrap();
        assert!(rules.check(&peer(0, &[0]), "x").is_ok() && rules.check(&peer(5, &[5]), "x").is_ok());
        let refused = rules.check(&peer(70001, &[0]), "x").unwrap_err();
        assert_eq!(refused.code, Code::Denied);
        assert!(
            refused.message.contains("no access rule") && refused.hint.contains("[[allow]]"),
            "{refused}"
        );
    }

    #[test]
    fn a_refusal_names_the_patterns_of_the_user() {
        let rules = AccessRules::resolve(&[rule(&[70001], &[], &["a-*"])], 5).unwrap();
        let refused = rules.check(&peer(70001, &[]), "b").unwrap_err().to_string();
        assert!(refused.contains("a-*") && refused.contains("70001"), "{refused}");
    }

    #[test]
    fn a_users_name_is_no_pattern() {
        let rule = Rule { users: vec![], groups: vec![], jobs: vec!["{user}-*".into()] };
        assert!(rule.has_job("a*-1", "a*") && !rule.has_job("ab-1", "a*"));
    }

    #[test]
    fn names_of_users_and_groups_are_resolved() {
        let named = |users: &[&str], groups: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| Principal::Name((*name).into())).collect();
            let rule = AccessRule { users: names(users), groups: names(groups), jobs: vec!["*".into()] };
            AccessRules::resolve(&[rule], 5)
        };
        assert!(named(&["root"], &["root"]).is_ok());
        for unknown in [named(&["nobody-has-this"], &[]), named(&[], &["nobody-has-this"])] {
            let message = unknown.unwrap_err().to_string();
            assert!(message.contains("allow, rule 1") && message.contains("nobody-has-this"), "{message}");
        }
    }

    #[test]
    fn supplementary_groups_are_those_of_the_process_of_the_user() {
        let status = "Name:\tx\nUid:\t7\t8\t8\t8\nGid:\t9\t9\t9\t9\nGroups:\t4 24 \n";
        assert_eq!(supplementary_groups(status, 8), Some(vec![4, 24]));
        assert_eq!(supplementary_groups(status, 9), None, "another user's process");
        assert_eq!(supplementary_groups("", 8), None);
        let own = Credentials::new(std::process::id().cast_signed(), Uid::effective().as_raw(), 12345);
        assert_eq!(own.groups.first(), Some(&12345));
        assert_eq!(own.groups.len(), 1 + nix::unistd::getgroups().unwrap().len());
    }
}
