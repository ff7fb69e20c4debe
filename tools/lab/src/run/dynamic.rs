//! The part of a run's report that only dynamic jobs have.

use serde::Serialize;
use serde_json::Value;
use sumac_client::OpenReply;

use super::counters::{engines, list};
use crate::deployment::DynamicOptions;

/// A dynamic job: shared slots, parameter hosts, congestion control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dynamic {
    /// Slots of each shard that all jobs share; 0 without an aggregator.
    pub shared_slots: u32,
    /// Packets that a lane may be ahead of its oldest without result.
    pub window: u32,
    /// Workers whose daemons are parameter hosts too.
    pub co_located: u16,
    /// Results that said that their chunk had found its slot busy, of all workers together.
    pub collisions: u64,
    /// Positions that moved to another slot after that, of all workers together.
    pub remapped: u64,
    /// Chunks whose floats were asked for, of all workers together.
    pub raw_chunks: u64,
    /// Lanes that sent straight to their parameter hosts in the end, of all workers together.
    pub direct: u64,
    /// The halvings of all workers' windows.
    pub halvings: u64,
    /// Results that told of congestion, of all workers together.
    pub marked: u64,
    /// Packets in flight that were allowed in the end, of all lanes and workers together.
    pub cwnd: u64,
    /// The input of each parameter host.
    pub parameter_hosts: Vec<HostReport>,
}

/// One parameter host's part of the job. Bytes are those of UDP payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// Contributions of single workers.
    pub contributions: u64,
    /// Sums of some workers.
    pub partial_sums: u64,
    /// Sums of all workers.
    pub full_sums: u64,
    /// Chunks that were completed.
    pub completed: u64,
    /// Of these, how many as floats.
    pub raw: u64,
    /// Results that were sent again.
    pub replies: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Bytes that left.
    pub bytes_out: u64,
}

impl Dynamic {
    /// From what the workers' daemons and those of the parameter hosts count; none of a static job.
    pub(super) fn of(
        opened: &OpenReply,
        options: Option<DynamicOptions>,
        stats: &[Value],
        hosts: &[Value],
    ) -> Option<Dynamic> {
        let reply = opened.dynamic.as_ref()?;
        let options = options.unwrap_or_default();
        let sum = |field: &str| engines(stats).filter_map(|engine| engine[field].as_u64()).sum();
        Some(Dynamic {
            shared_slots: if options.has_aggregator { options.slots } else { 0 },
            window: reply.window,
            co_located: options.co_located,
            collisions: sum("collisions"),
            remapped: sum("remapped"),
            raw_chunks: sum("raw_chunks"),
            direct: sum("direct"),
            halvings: sum("halvings"),
            marked: sum("marked"),
            cwnd: sum("cwnd"),
            parameter_hosts: hosts.iter().map(HostReport::of).collect(),
        })
    }

    /// Bytes that came into all parameter hosts.
    pub fn bytes_in(&self) -> u64 {
        self.parameter_hosts.iter().map(|host| host.bytes_in).sum()
    }
}

impl HostReport {
    /// From a daemon's statistics, over all its jobs.
    fn of(stats: &Value) -> HostReport {
        let sum = |field: &str| list(&stats["parameter_host"]).filter_map(|job| job[field].as_u64()).sum();
        HostReport {
            contributions: sum("contributions"),
            partial_sums: sum("partial_sums"),
            full_sums: sum("full_sums"),
            completed: sum("completed"),
            raw: sum("raw"),
            replies: sum("replies"),
            bytes_in: sum("bytes_in"),
            bytes_out: sum("bytes_out"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_host_s_jobs_are_added_up() {
        let stats = json!({"parameter_host": [{"bytes_in": 5, "completed": 2}, {"bytes_in": 7}]});
        let host = HostReport::of(&stats);
        assert_eq!((host.bytes_in, host.completed, host.raw), (12, 2, 0));
        assert_eq!(HostReport::of(&json!({"parameter_host": null})), HostReport::default());
    }
}
