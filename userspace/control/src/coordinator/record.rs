//! The coordinator's memory between processes: records for the journal, and what they say together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    ids::{RackId, RunId},
    rack::Rack,
    run::Run,
    time::Time,
};
use crate::{
    events::Post,
    plane::{KnownJob, LastEpoch},
};

#[derive(Debug, Serialize, Deserialize)]
pub enum Record {
    Instance(u64),
    /// Incarnations that are used up.
    Epochs(Vec<LastEpoch>),
    Rack {
        id: RackId,
        #[serde(flatten)]
        rack: Rack,
    },
    RackGone(RackId),
    /// A running job, as the text of its JSON form.
    Run(RunId, String),
    Posts {
        run: RunId,
        rank: u16,
        first: u64,
        posts: Vec<Post>,
    },
    End(RunId),
}

impl Record {
    /// Whether it must be on the disk before anybody acts on it.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        !matches!(self, Record::Posts { .. })
    }
}

#[derive(Debug, Default)]
pub struct Restart {
    pub(super) instance: u64,
    pub(super) epochs: Vec<LastEpoch>,
    pub(super) racks: BTreeMap<RackId, Rack>,
    pub(super) runs: BTreeMap<RunId, Run>,
}

impl Restart {
    #[must_use]
    pub fn new(records: Vec<Record>) -> Restart {
        let mut restart = Restart::default();
        for record in records {
            match record {
                Record::Instance(instance) => restart.instance = instance,
                Record::Epochs(epochs) => restart.epochs.extend(epochs),
                Record::Rack { id, mut rack } => {
                    // What it kept counts when it enters again.
                    rack.plane.kept.clear();
                    restart.racks.insert(id, rack);
                }
                Record::RackGone(id) => drop(restart.racks.remove(&id)),
                Record::Run(id, run) => match serde_json::from_str(&run) {
                    Ok(run) => drop(restart.runs.insert(id, run)),
                    Err(error) => {
                        tracing::error!(%error, "a job of the journal is of another release; it is lost");
                    }
                },
                Record::Posts { run, rank, first, posts } => {
                    if let Some(state) = restart.runs.get_mut(&run)
                        && state.take_posts(Time::ZERO, rank, first, posts).is_err()
                    {
                        restart.runs.remove(&run);
                    }
                }
                Record::End(id) => drop(restart.runs.remove(&id)),
            }
        }
        restart
    }

    #[must_use]
    pub fn known_jobs(&self) -> Vec<KnownJob> {
        self.runs.values().filter_map(Run::known).collect()
    }
}
