//! The job of a collective communicator: its ranks at the daemons, and the slots that it asks for.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sumac_client::{JobOptions, Mode, NonFinitePolicy};

use crate::address::{Address, ranks_per_daemon};
use crate::daemon;
use crate::error::PluginError;
use crate::group::Group;
use crate::opening::{self, OpenedJob};

/// Slots of each lane of a job that is not its processes' first.
const SLOTS_OF_OTHERS: u32 = 64;
/// The time for which a job is asked for that the control plane refuses, and the time between two attempts.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(15);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(300);
/// The time for all ranks to join after a refusal.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(20);

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
    let pool = Pool::of_environment(first.is_first)?;
    // The job's name is that of rank 0's handle, which all ranks have.
    let options = daemon::job_options(first.job("coll"), rank, world)?
        .local_world(local_world)
        // NaN and infinity of a gradient do not end the job: a loss scaler looks for them in the result.
        .not_finite(NonFinitePolicy::Carry);
    let opened = open_accepted(&pool.of(options))?;
    COMMUNICATORS.fetch_add(1, Ordering::Relaxed);
    Group::new(own, addresses.len(), opened)
}

/// Opens a job, again and again while the control plane refuses it: a job that is measured holds the slots
/// that it starts with. All attempts are alike, since a refusal may reach some ranks and not those that come
/// later.
fn open_accepted(options: &JobOptions) -> Result<OpenedJob, PluginError> {
    let begin = Instant::now();
    let mut timeout = daemon::JOIN_TIMEOUT;
    loop {
        match opening::open(options.clone().timeout(timeout)) {
            Err(error) if error.is_refusal && begin.elapsed() < REFUSED_TIMEOUT => {}
            outcome => return outcome,
        }
        timeout = REJOIN_TIMEOUT;
        thread::sleep(BETWEEN_ATTEMPTS);
    }
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

    /// The pool that the environment chooses, by the variables of `sumac.torch`.
    fn of_environment(is_first: bool) -> Result<Pool, PluginError> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Pool::chosen(is_first, variable("SUMAC_MODE").as_deref(), variable("SUMAC_SLOTS").as_deref())
    }

    fn chosen(is_first: bool, mode: Option<&str>, slots: Option<&str>) -> Result<Pool, PluginError> {
        let parse = |text: &str| {
            text.parse().map_err(|_| PluginError::usage(format!("SUMAC_SLOTS={text} is no number of slots")))
        };
        let slots = slots.map(parse).transpose()?.or((!is_first).then_some(SLOTS_OF_OTHERS));
        match mode {
            None | Some("static") => Ok(Pool { mode: Mode::Static, slots }),
            Some("dynamic") => Ok(Pool { mode: Mode::Dynamic, slots: None }),
            Some("direct") => Ok(Pool { mode: Mode::Direct, slots: None }),
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
        assert_eq!(Pool::chosen(true, None, None).unwrap(), pool(Mode::Static, None));
        assert_eq!(Pool::chosen(false, None, None).unwrap(), pool(Mode::Static, Some(64)));
        assert_eq!(Pool::chosen(true, Some("static"), Some("8")).unwrap(), pool(Mode::Static, Some(8)));
        assert_eq!(Pool::chosen(false, Some("dynamic"), Some("8")).unwrap(), pool(Mode::Dynamic, None));
        assert_eq!(Pool::chosen(true, Some("direct"), None).unwrap(), pool(Mode::Direct, None));
        assert!(Pool::chosen(true, Some("ring"), None).is_err());
        assert!(Pool::chosen(true, None, Some("many")).is_err());
    }
}
