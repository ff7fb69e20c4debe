//! The handles of a simulated host: regions of real shared memory, their leases, completion words, and
//! counted eventfds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sumac_api::{Code, Failure, JobSpec, Open};
use sumac_host::plan::{JobDefaults, complete};
use sumac_host::{
    ConnectionId, Credentials, FragmentKey, JobId, LeaseRequest, OperationKey, RankSum, RegionId, Resources,
    WordPlace,
};
use sumac_memory::{Lease, LeaseError, SharedRegion, Word};
use sumac_transport::{Buffer, LocalSum, WorkerBuffer};

/// The memory of a fragment.
#[derive(Debug)]
pub struct LeasedMemory {
    input: Option<Lease>,
    output: Option<Lease>,
    skips: [usize; 2],
    written: Arc<AtomicUsize>,
}

impl Buffer for LeasedMemory {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        let at = byte_offset.checked_sub(self.skips[0]);
        self.input.as_ref().zip(at).and_then(|(lease, at)| lease.input(at, len)).unwrap_or(&[])
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        let at = byte_offset.checked_sub(self.skips[1]);
        let lease = self.output.as_mut().or(self.input.as_mut());
        let output = lease.zip(at).and_then(|(lease, at)| lease.output(at, len)).unwrap_or(&mut []);
        self.written.fetch_add(output.len(), Ordering::Relaxed);
        output
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Handles {
    /// The daemon's mappings.
    pub regions: BTreeMap<RegionId, SharedRegion>,
    leases: BTreeMap<FragmentKey, LeasedMemory>,
    words: BTreeMap<OperationKey, Word>,
    pub events: BTreeSet<(ConnectionId, u64)>,
    /// Bytes of results that were written to regions.
    pub written: Arc<AtomicUsize>,
}

fn failed(handle: u64) -> impl Fn(LeaseError) -> Failure {
    move |error| {
        let code = match error {
            LeaseError::Outside { .. } => Code::OutOfRange,
            LeaseError::Unaligned { .. } => Code::Misaligned,
            LeaseError::Busy { .. } => Code::RangeBusy,
        };
        Failure::new(code, format!("region {handle}: {error}"))
    }
}

impl Handles {
    /// Takes a fragment's lease, for the engine that sums it.
    pub fn take_lease(&mut self, key: FragmentKey) -> Option<LeasedMemory> {
        self.leases.remove(&key)
    }

    /// Takes the leases of a fragment of several ranks, for their sum.
    pub fn sum(&mut self, RankSum { keys, mut sum }: RankSum) -> LocalSum {
        for (part, key) in sum.parts.iter_mut().zip(keys) {
            if let Some(memory) = self.take_lease(key) {
                part.buffer = Box::new(memory);
            }
        }
        sum
    }

    /// Takes a fragment's memory, for the engine: that of one rank, or of all of this host's.
    pub fn buffer(&mut self, key: FragmentKey, ranks: Option<RankSum>) -> Option<Box<dyn Buffer>> {
        match ranks {
            Some(ranks) => Some(Box::new(WorkerBuffer::new(self.sum(ranks)))),
            None => self.take_lease(key).map(|memory| Box::new(memory) as Box<dyn Buffer>),
        }
    }

    /// Whether nothing is leased or open.
    pub fn are_free(&self) -> bool {
        self.regions.is_empty() && self.leases.is_empty() && self.words.is_empty() && self.events.is_empty()
    }

    /// Ends all leases, as a daemon does that has handed over; no word is set.
    pub fn forget_leases(&mut self) {
        self.leases.clear();
        self.words.clear();
    }

    fn region(&self, region: RegionId) -> Result<&SharedRegion, Failure> {
        self.regions.get(&region).ok_or_else(|| Failure::new(Code::Internal, "the region is not mapped"))
    }
}

impl Resources for Handles {
    fn lease(&mut self, key: FragmentKey, request: &LeaseRequest) -> Result<(), Failure> {
        let ([from, to], failed) = (request.regions, failed(request.handle));
        let (input, output) = (request.input.clone(), request.output.clone());
        let (input, output) = if input.is_empty() && output.is_empty() {
            (None, None)
        } else if from == to {
            (Some(self.region(from)?.lease(input, output).map_err(failed)?), None)
        } else {
            let input = self.region(from)?.lease(input, 0..0).map_err(&failed)?;
            (Some(input), Some(self.region(to)?.lease(0..0, output).map_err(&failed)?))
        };
        let written = self.written.clone();
        self.leases.insert(key, LeasedMemory { input, output, skips: request.skips, written });
        Ok(())
    }

    fn lease_word(&mut self, key: OperationKey, place: &WordPlace) -> Result<(), Failure> {
        let offset = usize::try_from(place.offset).unwrap_or(usize::MAX);
        let word = self.region(place.region)?.word(offset).map_err(failed(place.handle))?;
        self.words.insert(key, word);
        Ok(())
    }

    fn set_word(&mut self, key: OperationKey, is_complete: bool) {
        if let Some(word) = self.words.remove(&key) {
            let value = if is_complete { sumac_api::WORD_COMPLETE } else { sumac_api::WORD_FAILED };
            word.release_with(value).expect("a mapping of this process");
        }
    }

    fn release(&mut self, key: OperationKey) {
        self.words.remove(&key);
        self.leases.retain(|fragment, _| fragment.operation != key);
    }

    fn create_event(&mut self, connection: ConnectionId, handle: u64) -> Result<(), Failure> {
        assert!(self.events.insert((connection, handle)), "a handle has two eventfds");
        Ok(())
    }

    fn close_event(&mut self, connection: ConnectionId, handle: u64) {
        assert!(self.events.remove(&(connection, handle)), "an eventfd is closed twice");
    }

    fn plan(&mut self, _job: JobId, _credentials: &Credentials, open: &Open) -> Result<JobSpec, Failure> {
        complete(&open.spec, &JobDefaults { join_timeout_s: 5.0, ..JobDefaults::default() })
    }

    fn is_secret(&self, _job: JobId, secret: &str) -> bool {
        secret == "right"
    }

    fn create_region(&mut self, region: RegionId, size: u64) -> Result<(), Failure> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let (created, _) = SharedRegion::for_readers(size)
            .map_err(|error| Failure::new(Code::BadRegion, error.to_string()))?;
        self.regions.insert(region, created);
        Ok(())
    }

    fn unmap(&mut self, region: RegionId) {
        assert!(self.regions.remove(&region).is_some(), "a region is unmapped twice");
    }
}
