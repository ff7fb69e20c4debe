//! The job of a collective communicator: its ranks at the daemons, and the slots that it asks for.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sumac_client::{JobOptions, Mode, NonFinitePolicy};

use crate::address::{Address, ranks_per_daemon};
use crate::daemon;
use crate::error::PluginError;
use crate::group::Group;
use crate::opening::{self, OpenedJob};

/// Slots of each lane of a job that is not its processes' first.
const SLOTS_OF_OTHERS: u32 = 64;
/// The times that a job is asked for which the control plane refuses, and the time between them.
const ROUNDS: usize = 4;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(500);

/// Collective communicators that this process has had.
static COMMUNICATORS: AtomicUsize = AtomicUsize::new(0);

/// Whether this process has had no collective communicator yet.
pub(crate) fn is_first() -> bool {
    COMMUNICATORS.load(Ordering::Relaxed) == 0
}

/// Joins all ranks, from the handles of all.
pub(crate) fn join(addresses: &[Address], rank: c_int) -> Result<Group, PluginError> {
    let own = usize::try_from(rank).unwrap_or(usize::MAX);
    let (Some(first), true) = (addresses.first(), own < addresses.len()) else {
        return Err(PluginError::argument(format!("there is no rank {rank} of {}", addresses.len())));
    };
    let daemons: Vec<u64> = addresses.iter().map(|address| address.daemon).collect();
    let local_world = ranks_per_daemon(&daemons).ok_or_else(|| {
        let message = "the ranks are not the same number at each daemon, one after the other";
        PluginError::usage(message)
    })?;
    let number = |number: usize| u16::try_from(number).map_err(|_| PluginError::argument("too many ranks"));
    let (rank, world, local_world) = (number(own)?, number(addresses.len())?, number(local_world)?);
    // The job's name is that of rank 0's handle, which all ranks have.
    let opened = open_accepted(first.is_first, |attempt, pool| {
        let options = daemon::job_options(first.job(&format!("coll{attempt}")), rank, world)?;
        // NaN and infinity of a gradient do not end the job: a loss scaler looks for them in the result.
        let options = options.timeout(daemon::JOIN_TIMEOUT).not_finite(NonFinitePolicy::Carry);
        Ok(pool.of(options.local_world(local_world)))
    })?;
    COMMUNICATORS.fetch_add(1, Ordering::Relaxed);
    Group::new(own, addresses.len(), opened)
}

/// Opens the first job that the control plane does not refuse, as `sumac.torch` does. It refuses all ranks
/// alike. While another job is measured it holds the slots that it starts with, so refusals are tried again.
fn open_accepted(
    is_first: bool,
    options: impl Fn(usize, Pool) -> Result<JobOptions, PluginError>,
) -> Result<OpenedJob, PluginError> {
    let pools = Pool::of_environment(is_first)?;
    let mut refusal = None;
    for round in 0..ROUNDS {
        if round > 0 {
            thread::sleep(BETWEEN_ROUNDS);
        }
        for (at, pool) in pools.iter().enumerate() {
            match opening::open(options(round * pools.len() + at, *pool)?) {
                Err(error) if error.is_refusal => refusal = Some(error),
                outcome => return outcome,
            }
        }
    }
    Err(refusal.unwrap_or_else(|| PluginError::internal("there is no job to open")))
}

/// The slots that a job asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pool {
    mode: Mode,
    /// Of each lane of a static job; `None`: as many as the path needs.
    slots: Option<u32>,
}

impl Pool {
    fn of(self, options: JobOptions) -> JobOptions {
        let options = options.mode(self.mode);
        match self.slots {
            Some(slots) => options.slots(slots),
            None => options,
        }
    }

    /// The pools to ask for, in order: the environment's, as for `sumac.torch`.
    fn of_environment(is_first: bool) -> Result<Vec<Pool>, PluginError> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Pool::chosen(is_first, variable("SUMAC_MODE").as_deref(), variable("SUMAC_SLOTS").as_deref())
    }

    fn chosen(is_first: bool, mode: Option<&str>, slots: Option<&str>) -> Result<Vec<Pool>, PluginError> {
        let parse = |text: &str| {
            text.parse().map_err(|_| PluginError::usage(format!("SUMAC_SLOTS={text} is no number of slots")))
        };
        let slots = slots.map(parse).transpose()?;
        let of = |mode, slots| Pool { mode, slots };
        let small = of(Mode::Static, slots.or(Some(SLOTS_OF_OTHERS)));
        let first = of(Mode::Static, slots);
        let dynamic = of(Mode::Dynamic, None);
        let mut statics = if is_first { vec![first, small] } else { vec![small] };
        statics.dedup();
        match mode {
            None => Ok([statics, vec![dynamic]].concat()),
            Some("static") => Ok(statics),
            Some("dynamic") => Ok(vec![dynamic]),
            Some("direct") => Ok(vec![of(Mode::Direct, None)]),
            Some(other) => Err(PluginError::usage(format!("SUMAC_MODE={other}: static, dynamic or direct"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_communicator_has_the_slots_that_its_path_needs() {
        let pool = |mode, slots| Pool { mode, slots };
        let (free, small) = (pool(Mode::Static, None), pool(Mode::Static, Some(64)));
        let dynamic = pool(Mode::Dynamic, None);
        assert_eq!(Pool::chosen(true, None, None).unwrap(), [free, small, dynamic]);
        assert_eq!(Pool::chosen(false, None, None).unwrap(), [small, dynamic]);
        let eight = pool(Mode::Static, Some(8));
        assert_eq!(Pool::chosen(true, Some("static"), Some("8")).unwrap(), [eight]);
        assert_eq!(Pool::chosen(true, Some("dynamic"), Some("8")).unwrap(), [dynamic]);
        assert_eq!(Pool::chosen(true, Some("direct"), None).unwrap(), [pool(Mode::Direct, None)]);
        assert!(Pool::chosen(true, Some("ring"), None).is_err());
        assert!(Pool::chosen(true, None, Some("many")).is_err());
    }
}
