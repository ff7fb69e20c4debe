//! What a control plane knows, for people.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use super::{Coordinator, End, Phase, RackId, run::Run};

/// Who is below a control plane, and which jobs it has; as `sumac-agg control --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// Aggregators of racks, by name.
    pub racks: Vec<Below>,
    /// Parameter hosts of dynamic jobs, by name.
    pub parameter_hosts: Vec<Below>,
    /// Jobs, by name; those that are over until all members know.
    pub jobs: Vec<Job>,
}

/// A rack, or a parameter host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Below {
    /// How people call it.
    pub name: String,
    /// Where its control connection comes from.
    pub ip: Ipv4Addr,
    /// Where a parameter host takes contributions of shard 0; none of a rack.
    pub sums_at: Option<SocketAddrV4>,
    /// Why its data plane does not answer it; none when it does.
    pub away: Option<String>,
    /// The jobs of this control plane that it has.
    pub jobs: Vec<u16>,
    /// The jobs that a parameter host has of an earlier one.
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
    /// Racks that do not have it at present, by name; `root` for this aggregator itself.
    pub without: Vec<String>,
}

impl Coordinator {
    /// What this control plane knows.
    pub fn overview(&self) -> Overview {
        let mut below: Vec<Below> = self.racks.keys().filter_map(|id| self.below(*id)).collect();
        below.sort_by(|a, b| a.name.cmp(&b.name));
        let (parameter_hosts, racks) = below.into_iter().partition(|below| below.sums_at.is_some());
        let mut jobs: Vec<Job> = self.runs.values().map(|run| self.job(run)).collect();
        jobs.sort_by(|a, b| (&a.name, a.epoch).cmp(&(&b.name, b.epoch)));
        Overview { racks, parameter_hosts, jobs }
    }

    fn below(&self, id: RackId) -> Option<Below> {
        let rack = self.racks.get(&id)?;
        let has =
            |run: &&Run| if rack.is_host() { run.is_at_host(id) } else { run.is_live() && run.is_below(id) };
        let mut jobs: Vec<u16> = self.runs.values().filter(has).map(|run| run.job).collect();
        jobs.sort_unstable();
        Some(Below {
            name: rack.name.clone(),
            ip: rack.ip,
            sums_at: self.host_address(id).filter(|_| rack.is_host()),
            away: rack.why_away().map(str::to_owned),
            jobs,
            kept: rack.plane.kept.clone(),
        })
    }

    fn job(&self, run: &Run) -> Job {
        let name_of = |id: &RackId| self.racks.get(id).map(|rack| rack.name.clone());
        let shared = run.shared.as_ref();
        let gaps = shared.into_iter().flat_map(|shared| shared.gaps.keys().map(move |at| (shared, at)));
        let without = gaps.map(|(shared, at)| match at {
            None => "root".to_owned(),
            Some(rack) => shared.racks.get(rack).map_or_else(String::new, |known| known.name.clone()),
        });
        let vacant = run.seats.iter().filter(|(_, seat)| seat.vacant.is_some());
        Job {
            name: run.name.clone(),
            job: run.job,
            epoch: run.epoch,
            mode: if run.is_dynamic() { "dynamic" } else { "static" }.into(),
            world: run.world,
            state: match &run.phase {
                Phase::Gathering | Phase::Ready => "waiting",
                Phase::Installing => "starting",
                Phase::Running(_) => "running",
                Phase::Over(End::Refused(_) | End::Failed(_) | End::Finished) => "over",
            }
            .into(),
            missing: if run.is_over() { Vec::new() } else { run.missing() },
            vacant: vacant.map(|(rank, _)| *rank).collect(),
            parameter_hosts: shared.into_iter().flat_map(|s| &s.hosts).filter_map(name_of).collect(),
            without: without.chain(self.lost_racks_of(run)).collect(),
        }
    }

    /// The racks of a dynamic job that are not there.
    fn lost_racks_of<'a>(&'a self, run: &'a Run) -> impl Iterator<Item = String> + 'a {
        let known = run.shared.iter().flat_map(|shared| &shared.racks);
        known.filter(|(id, _)| !self.racks.contains_key(id)).map(|(_, known)| known.name.clone())
    }
}
