//! The users and groups of this host: of a connection's process, and by the names in the configuration's
//! access rules.

use nix::unistd::{Gid, Group, Uid, User};
use sumac_host::{AccessRule, AccessRules, Credentials};

use crate::config::{self, Principal};

/// Returns the user that has connected. `pid`, `uid` and `gid`: of SO_PEERCRED.
pub(crate) fn credentials(pid: i32, uid: u32, gid: u32) -> Credentials {
    // The kernel has them in SO_PEERGROUPS, too, which no safe interface returns.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let supplementary = supplementary_groups(&status, uid);
    if supplementary.is_none() {
        tracing::debug!(pid, uid, "the supplementary groups of a trainer cannot be read from /proc");
    }
    let groups = std::iter::once(gid).chain(supplementary.unwrap_or_default()).collect();
    Credentials { pid, uid, groups }
}

/// Returns the supplementary groups in the text of `/proc/PID/status`; `None` when the process is another
/// user's, which has the number of one that has ended.
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

/// Resolves the names of the configuration's rules. `own`: the daemon's user, which needs no rule, as root
/// needs none.
pub(crate) fn resolve(rules: &[config::AccessRule], own: u32) -> Result<AccessRules, UnknownPrincipal> {
    let resolve = |(place, rule): (usize, &config::AccessRule)| {
        let key = |list| format!("allow, rule {}, {list}", place + 1);
        let users = rule.users.iter().map(|user| uid(user, &key("users")));
        let groups = rule.groups.iter().map(|group| gid(group, &key("groups")));
        Ok(AccessRule {
            users: users.collect::<Result<_, _>>()?,
            groups: groups.collect::<Result<_, _>>()?,
            jobs: rule.jobs.clone(),
        })
    };
    let rules = rules.iter().enumerate().map(resolve).collect::<Result<_, _>>()?;
    Ok(AccessRules { own, rules })
}

/// Returns the user's name; the number of one without.
pub(crate) fn user_name(uid: u32) -> String {
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

    #[test]
    fn names_of_users_and_groups_are_resolved() {
        let named = |users: &[&str], groups: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| Principal::Name((*name).into())).collect();
            let rule = config::AccessRule {
                users: names(users),
                groups: names(groups),
                jobs: vec![sumac_host::JobPattern::parse("*").unwrap()],
            };
            resolve(&[rule], 5)
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
        let own = credentials(std::process::id().cast_signed(), Uid::effective().as_raw(), 12345);
        assert_eq!(own.groups.first(), Some(&12345));
        assert_eq!(own.groups.len(), 1 + nix::unistd::getgroups().unwrap().len());
    }
}
