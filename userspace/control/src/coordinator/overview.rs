//! The state of a control plane, for people.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_job::Mode;

use serde::{Deserialize, Serialize};

use super::{
    Coordinator,
    ids::RackId,
    run::{Phase, Run},
};
use crate::server::stats::ServerStats;

/// The racks, parameter hosts and jobs of a control plane; as `sumac-agg control --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// Aggregators of racks, by name.
    pub racks: Vec<Below>,
    /// Parameter hosts of dynamic jobs, by name.
    pub parameter_hosts: Vec<Below>,
    /// Jobs, by name; those that are over until all members have received it.
    pub jobs: Vec<Job>,
    /// Its server; of a coordinator alone all zero.
    #[serde(default)]
    pub server: ServerStats,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Below {
    pub name: String,
    /// The source of its control connection.
    pub ip: Ipv4Addr,
    /// The rack that it is below, by name; none: it is below the root itself.
    pub above: Option<String>,
    /// A parameter host's address for contributions of shard 0; none of a rack.
    pub sums_at: Option<SocketAddrV4>,
    /// The reason that its data plane does not answer; none when it does.
    pub away: Option<String>,
    /// The jobs of this control plane that it has.
    pub jobs: Vec<u16>,
    /// The jobs of a parameter host that this control plane does not know.
    pub kept: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub name: String,
    /// Its number; 0 before it starts.
    pub job: u16,
    /// Its incarnation; 0 before it starts.
    pub epoch: u16,
    /// `static` or `dynamic`.
    pub mode: String,
    pub world: u16,
    /// `waiting`, `starting`, `running` or `over`.
    pub state: String,
    pub missing: Vec<u16>,
    /// Ranks that are dead and may be replaced.
    pub vacant: Vec<u16>,
    pub parameter_hosts: Vec<String>,
    /// Racks that do not have it at present, by name; `root` for this aggregator itself.
    pub without: Vec<String>,
}

impl Coordinator {
    pub fn overview(&self) -> Overview {
        let mut below: Vec<Below> = self
            .racks
            .iter()
            .filter(|(_, rack)| rack.is_connected)
            .filter_map(|(id, _)| self.below(*id))
            .collect();
        below.sort_by(|a, b| a.name.cmp(&b.name));
        let (parameter_hosts, racks) = below.into_iter().partition(|below| below.sums_at.is_some());
        let mut jobs: Vec<Job> = self.runs.values().map(|run| self.job(run)).collect();
        jobs.sort_by(|a, b| (&a.name, a.epoch).cmp(&(&b.name, b.epoch)));
        Overview { racks, parameter_hosts, jobs, server: ServerStats::default() }
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
            above: rack.above.and_then(|above| Some(self.racks.get(&above)?.name.clone())),
            sums_at: self.address_of(id).filter(|_| rack.is_host()),
            away: rack.away.as_ref().map(|(_, why)| why.clone()),
            jobs,
            kept: rack.plane.kept.clone(),
        })
    }

    fn job(&self, run: &Run) -> Job {
        let name_of = |id: &RackId| self.racks.get(id).map(|rack| rack.name.clone());
        let shared = run.shared.as_ref();
        let mut without: Vec<String> = shared
            .into_iter()
            .flat_map(|shared| shared.missing_at.keys())
            .filter_map(|at| at.as_ref().map_or(Some("root".to_owned()), name_of))
            .collect();
        without.extend(self.lost_racks_of(run));
        without.dedup();
        Job {
            name: run.name.clone(),
            job: run.job,
            epoch: run.epoch(),
            mode: run
                .members
                .values()
                .next()
                .map_or(Mode::Static, |member| member.asked.mode())
                .name()
                .into(),
            world: run.world,
            state: match &run.phase {
                Phase::Gathering | Phase::Ready => "waiting",
                Phase::Installing => "starting",
                Phase::Running => "running",
                Phase::Over(_) => "over",
            }
            .into(),
            missing: if run.is_over() { Vec::new() } else { run.missing() },
            vacant: run.ranks(|member| member.vacated.is_some()),
            parameter_hosts: shared.into_iter().flat_map(|s| &s.hosts).filter_map(name_of).collect(),
            without,
        }
    }

    fn lost_racks_of<'a>(&'a self, run: &'a Run) -> impl Iterator<Item = String> + 'a {
        let known = run.racks.keys().filter(|_| run.shared.is_some());
        let away = known.filter_map(|id| self.racks.get(id)).filter(|rack| !rack.is_connected);
        away.map(|rack| rack.name.clone())
    }
}
