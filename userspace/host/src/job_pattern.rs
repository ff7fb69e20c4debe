//! Patterns of job names in access rules.

use std::fmt;

use glob::Pattern;
use serde::Deserialize;

/// Stands for the user's name in a rule's patterns of job names.
pub const USER: &str = "{user}";

/// Ends the owner at the start of a job's name. No user's name has it: it separates the fields of passwd(5).
pub const OWNER_END: char = ':';

/// A pattern that no access rule may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("{pattern:?} is no pattern: {problem}; it may have `*` and `?`")]
    Syntax { pattern: String, problem: &'static str },
    /// A pattern such as `{user}-*`, by which user `ml` would open the jobs of user `ml-ops`.
    #[error(
        "{pattern:?} is ambiguous: another user's name may continue in it; a pattern with `{USER}` \
         begins with `{USER}{OWNER_END}`, as \"{USER}{OWNER_END}*\" does, and jobs are named alike: \
         no user's name has `{OWNER_END}`"
    )]
    Ambiguous { pattern: String },
}

/// The job names that a pattern stands for.
#[derive(Clone, Debug)]
enum Names {
    /// `*`: all.
    All,
    /// `{user}`: the user's name.
    User,
    /// `{user}:JOB`
    OfUser(Pattern),
    /// `OWNER:JOB`
    OfOwners(Pattern, Pattern),
    /// No owner.
    Plain(Pattern),
}

/// A pattern of job names. The owner of a job is its name up to the first `:`, and is matched on its own.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct JobPattern {
    text: String,
    names: Names,
}

impl JobPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// It is no pattern, or its `{user}` is not the whole owner.
    pub fn parse(text: &str) -> Result<JobPattern, PatternError> {
        let glob = |part: &str| {
            Pattern::new(part)
                .map_err(|error| PatternError::Syntax { pattern: text.to_owned(), problem: error.msg })
        };
        let names = match text.split_once(OWNER_END) {
            _ if text == "*" => Names::All,
            _ if text == USER => Names::User,
            Some((USER, job)) if !job.contains(USER) => Names::OfUser(glob(job)?),
            _ if text.contains(USER) => return Err(PatternError::Ambiguous { pattern: text.to_owned() }),
            Some((owner, job)) => Names::OfOwners(glob(owner)?, glob(job)?),
            None => Names::Plain(glob(text)?),
        };
        Ok(JobPattern { text: text.to_owned(), names })
    }

    /// Returns whether a job's name matches, for the user of this name.
    #[must_use]
    pub fn matches(&self, job: &str, user: &str) -> bool {
        match (&self.names, job.split_once(OWNER_END)) {
            (Names::All, _) => true,
            (Names::User, None) => job == user,
            (Names::OfUser(pattern), Some((owner, job))) => owner == user && pattern.matches(job),
            (Names::OfOwners(owners, jobs), Some((owner, job))) => owners.matches(owner) && jobs.matches(job),
            (Names::Plain(pattern), None) => pattern.matches(job),
            _ => false,
        }
    }
}

impl TryFrom<String> for JobPattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<JobPattern, PatternError> {
        JobPattern::parse(&text)
    }
}

impl fmt::Debug for JobPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, job: &str, user: &str) -> bool {
        JobPattern::parse(pattern).unwrap().matches(job, user)
    }

    #[test]
    fn a_user_opens_no_job_of_a_user_whose_name_begins_with_its_own() {
        for other in
            ["ml-ops", "ml.ops", "ml_ops", "ml2", "mlops", "ml@site", "ml\\ops", "ml$", "ml*", "ML", "m"]
        {
            for job in [format!("{other}:train"), format!("{other}-train"), other.to_owned()] {
                for pattern in
                    ["{user}", "{user}:*", "{user}:train", "{user}:??*", "shared-*", "ml?", "*-ops"]
                {
                    let opened = matches(pattern, &job, "ml");
                    let is_its_own = !job.contains(OWNER_END) && !pattern.contains(USER);
                    assert!(!opened || is_its_own, "{pattern} lets ml open {job}");
                }
                assert!(!matches("shared-*", &job, other), "{job}");
            }
            assert!(matches("{user}:*", &format!("{other}:train"), other), "{other}");
        }
    }

    #[test]
    fn a_pattern_whose_user_may_continue_is_refused_with_the_remedy() {
        let ambiguous = [
            "{user}-*",
            "{user}*",
            "{user}/*",
            "{user}.1",
            "team-{user}",
            "team-{user}:*",
            "team:{user}",
            "team:{user}:*",
            "{user}:{user}",
            "*{user}",
            "{user}{user}:*",
        ];
        for pattern in ambiguous {
            let error = JobPattern::parse(pattern).unwrap_err();
            assert_eq!(error, PatternError::Ambiguous { pattern: pattern.to_owned() });
            let message = error.to_string();
            assert!(message.contains(pattern) && message.contains("\"{user}:*\""), "{message}");
        }
        for broken in ["a[", "{user}:a[", "a[:]", "a***"] {
            assert!(matches!(JobPattern::parse(broken), Err(PatternError::Syntax { .. })), "{broken}");
        }
    }

    #[test]
    fn wildcards_do_not_pass_the_end_of_the_owner() {
        let cases = [
            ("*", "a", true),
            ("*", "ml-ops:a", true),
            ("a*", "a-1", true),
            ("a*", "ab:1", false),
            ("a*:*", "ab:1:2", true),
            ("a*:*", "ab", false),
            ("{user}:*", "ml:1:2", true),
            ("{user}:x?", "ml:x1", true),
            ("{user}:x?", "ml:x12", false),
            ("{user}", "ml", true),
            ("{user}", "ml:", false),
            ("{user}:*", "ml", false),
        ];
        for (pattern, job, is_match) in cases {
            assert_eq!(matches(pattern, job, "ml"), is_match, "{pattern} {job}");
        }
    }
}
