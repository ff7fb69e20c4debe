//! What the control plane of `sumac-agg serve` knows: who is below it, and which jobs it has.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddrV4},
};

use serde::{Deserialize, Serialize};
use sumac_control::coordinator::overview::{self, Overview};

/// All of it, as `sumac-agg control --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// Aggregators of racks.
    pub racks: Vec<Below>,
    /// Parameter hosts of dynamic jobs.
    pub parameter_hosts: Vec<Below>,
    /// Jobs, by name.
    pub jobs: Vec<Job>,
}

/// A rack, or a parameter host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Below {
    /// How people call it.
    pub name: String,
    /// Where its control connection comes from.
    pub ip: Ipv4Addr,
    /// Where a parameter host takes contributions of shard 0.
    pub sums_at: Option<SocketAddrV4>,
    /// Why it cannot work at present.
    pub away: Option<String>,
    /// The numbers of the jobs that it has.
    pub jobs: Vec<u16>,
    /// The numbers of the jobs that it goes on with after another control plane.
    pub kept: Vec<u16>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// Its number.
    pub job: u16,
    /// Its incarnation; 0 before it starts.
    pub epoch: u16,
    /// `static` or `dynamic`.
    pub mode: String,
    /// How many workers it has.
    pub world: u16,
    /// `waiting`, `starting`, `running` or `over`.
    pub state: String,
    /// Ranks that have not joined.
    pub missing: Vec<u16>,
    /// Ranks that are dead and may be replaced.
    pub vacant: Vec<u16>,
    /// Its parameter hosts, by name.
    pub parameter_hosts: Vec<String>,
    /// Aggregators that do not have it at present, by name.
    pub without: Vec<String>,
}

impl From<Overview> for ControlStatus {
    fn from(overview: Overview) -> ControlStatus {
        let (hosts, racks) = overview.below.into_iter().map(Below::from).partition(|b| b.sums_at.is_some());
        let jobs = overview.jobs.into_iter().map(Job::from).collect();
        ControlStatus { racks, parameter_hosts: hosts, jobs }
    }
}

impl From<overview::Below> for Below {
    fn from(below: overview::Below) -> Below {
        let overview::Below { name, ip, sums_at, away, jobs, kept } = below;
        Below { name, ip, sums_at, away, jobs, kept }
    }
}

impl From<overview::Job> for Job {
    fn from(job: overview::Job) -> Job {
        Job {
            name: job.name,
            job: job.job,
            epoch: job.epoch,
            mode: job.mode.into(),
            world: job.world,
            state: job.state.into(),
            missing: job.missing,
            vacant: job.vacant,
            parameter_hosts: job.parameter_hosts,
            without: job.without,
        }
    }
}

impl ControlStatus {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let below = self.racks.iter().map(|rack| ("rack", rack));
        for (what, below) in below.chain(self.parameter_hosts.iter().map(|host| ("parameter host", host))) {
            let at = below.sums_at.map_or_else(|| below.ip.to_string(), |at| at.to_string());
            let _ = write!(text, "{what} {} at {at}, {}", below.name, numbers("job", &below.jobs, "no jobs"));
            if !below.kept.is_empty() {
                let _ = write!(text, ", {} of an earlier control plane", numbers("job", &below.kept, ""));
            }
            if let Some(why) = &below.away {
                let _ = write!(text, "; out of service: {why}");
            }
            text.push('\n');
        }
        for job in &self.jobs {
            job.write(&mut text);
        }
        if text.is_empty() { "no racks, no parameter hosts, no jobs\n".into() } else { text }
    }
}

impl Job {
    fn write(&self, text: &mut String) {
        let Job { name, job, epoch, mode, world, state, .. } = self;
        let _ = write!(text, "job {job}.{epoch} `{name}`: {mode}, {world} workers, {state}");
        if !self.missing.is_empty() {
            let _ = write!(text, "; {} not joined", numbers("rank", &self.missing, ""));
        }
        if !self.vacant.is_empty() {
            let _ = write!(text, "; {} dead and to be replaced", numbers("rank", &self.vacant, ""));
        }
        if !self.parameter_hosts.is_empty() {
            let _ = write!(text, "; summed at {}", self.parameter_hosts.join(", "));
        }
        if !self.without.is_empty() {
            let _ = write!(text, "; without the aggregator of {}", self.without.join(", "));
        }
        text.push('\n');
    }
}

fn numbers(what: &str, numbers: &[u16], none: &str) -> String {
    let list: Vec<_> = numbers.iter().map(u16::to_string).collect();
    match &list[..] {
        [] => none.into(),
        [one] => format!("{what} {one}"),
        more => format!("{what}s {}", more.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_it() {
        let below = |name: &str, sums_at: Option<&str>| Below {
            name: name.into(),
            ip: Ipv4Addr::new(10, 77, 3, 2),
            sums_at: sums_at.map(|at| at.parse().unwrap()),
            away: None,
            jobs: vec![1, 2],
            kept: vec![],
        };
        let job = Job {
            name: "train".into(),
            job: 1,
            epoch: 4,
            mode: "dynamic".into(),
            world: 3,
            state: "running".into(),
            missing: vec![],
            vacant: vec![2],
            parameter_hosts: vec!["p".into(), "q".into()],
            without: vec!["r".into()],
        };
        let kept = Below { kept: vec![9], jobs: vec![], ..below("q", Some("10.77.4.2:48700")) };
        let status = ControlStatus {
            racks: vec![Below { away: Some("detached".into()), ..below("r", None) }],
            parameter_hosts: vec![below("p", Some("10.77.3.2:48700")), kept],
            jobs: vec![job],
        };
        let lines = [
            "rack r at 10.77.3.2, jobs 1, 2; out of service: detached",
            "parameter host p at 10.77.3.2:48700, jobs 1, 2",
            "parameter host q at 10.77.4.2:48700, no jobs, job 9 of an earlier control plane",
            "job 1.4 `train`: dynamic, 3 workers, running; rank 2 dead and to be replaced; summed at p, q; without the \
             aggregator of r",
        ];
        assert_eq!(status.text().lines().collect::<Vec<_>>(), lines);
        let nothing = ControlStatus::from(Overview::default());
        assert_eq!(nothing.text(), "no racks, no parameter hosts, no jobs\n");
    }
}
