//! An aggregator of dynamic jobs in memory: the shared checks and decisions of `sumac_wire`, plain vectors for values.

use sumac_transport::JobParams;
use sumac_wire::{
    Header, Reason,
    admit::{self, dynamic::Down},
    dynamic::{Action, SlotMeta, collided, decide, flushed, owner, passed, release, sum},
    header::{HEADER_LEN, NO_SLOT, flag},
    tables::{JobEntry, WorkerEntry, job_flag},
};

/// Milliseconds after which a slot is taken from a job that is silent.
const PATIENCE: u32 = 1000;

/// What an aggregator sends.
#[derive(Debug)]
pub enum Output {
    /// To the parameter host.
    Up(Vec<u8>),
    /// To all workers.
    Down(Vec<u8>),
    /// To this worker.
    Back(u16, Vec<u8>),
}

/// The slots, and the job that is known here.
pub struct Slots {
    job: JobEntry,
    number: u16,
    metas: Vec<SlotMeta>,
    values: Vec<Vec<i32>>,
    /// Contributions that found their slot busy.
    pub collisions: u64,
}

impl Slots {
    pub fn new(params: &JobParams, slots: u32) -> Slots {
        let job = JobEntry {
            token: params.token,
            slots,
            shards: params.shards,
            contributors: params.world,
            epoch: params.epoch,
            world: params.rack_world,
            elements: params.elements,
            flags: job_flag::ACTIVE | job_flag::DYNAMIC,
            hosts: 1,
            ..JobEntry::default()
        };
        let metas = vec![SlotMeta::default(); slots as usize];
        let values = vec![Vec::new(); slots as usize];
        Slots { job, number: params.job, metas, values, collisions: 0 }
    }

    /// Loses everything that is in the slots.
    pub fn forget(&mut self) {
        self.metas.fill(SlotMeta::default());
    }

    /// How many slots hold something.
    pub fn in_use(&self) -> usize {
        self.metas.iter().filter(|meta| meta.owner != 0).count()
    }

    /// Fills every slot with a chunk of another job, which never comes back for it.
    pub fn occupy(&mut self, now: u32) {
        let other = SlotMeta { owner: owner(9, 0, 0), bitmap: 1, stamp: now, ..SlotMeta::default() };
        self.metas.fill(other);
    }

    /// The values of a slot.
    fn add(&mut self, slot: usize, elements: &[u8], is_order: bool) {
        let words = elements.as_chunks().0.iter().map(|word| i32::from_be_bytes(*word));
        let mut has_overflowed = false;
        for (value, word) in self.values[slot].iter_mut().zip(words) {
            has_overflowed |= !is_order && value.checked_add(word).is_none();
            *value = if is_order { (*value).max(word) } else { value.saturating_add(word) };
        }
        self.metas[slot].flags |= if has_overflowed { flag::OVERFLOW } else { 0 };
    }

    fn held(&self, header: &Header, slot: usize) -> Vec<u8> {
        let elements = self.values[slot].iter().flat_map(|value| value.to_be_bytes());
        header.to_bytes().into_iter().chain(elements).collect()
    }

    /// Takes a worker's packet at `now` (milliseconds).
    pub fn on_worker(&mut self, now: u32, payload: &[u8], marked: bool) -> Result<Option<Output>, Reason> {
        let mut header = Header::read(payload, 0, payload.len())?;
        header.flags |= if marked { flag::ECN_ECHO } else { 0 };
        if header.job != self.number {
            return Err(Reason::UnknownJob);
        }
        admit::sender(&header, &self.job)?;
        let elements = &payload[HEADER_LEN..];
        let with = |header: Header| [&header.to_bytes(), elements].concat();
        let Some(contribution) = admit::dynamic::request(&header, &self.job, 0)? else {
            return Ok(Some(Output::Up(with(passed(&header)))));
        };
        if header.slot == NO_SLOT {
            return Ok(Some(Output::Up(with(passed(&header)))));
        }
        let slot = header.slot as usize;
        let before = self.metas[slot];
        let (after, action) = decide(&before, &contribution, now, PATIENCE);
        self.metas[slot] = after;
        let is_order = header.has(flag::MAXIMUM);
        Ok(match action {
            Action::Store => {
                self.values[slot] =
                    elements.as_chunks().0.iter().map(|word| i32::from_be_bytes(*word)).collect();
                None
            }
            Action::Add => {
                self.add(slot, elements, is_order);
                None
            }
            Action::Complete => {
                self.add(slot, elements, is_order);
                Some(Output::Up(self.held(&sum(&header, &self.metas[slot]), slot)))
            }
            Action::Flush { adds } => {
                self.metas[slot] = before;
                if adds {
                    self.add(slot, elements, is_order);
                }
                let header = flushed(&header, &self.metas[slot]);
                self.metas[slot] = after;
                Some(Output::Up(self.held(&header, slot)))
            }
            Action::Pass => Some(Output::Up(with(passed(&header)))),
            Action::Collide => {
                self.collisions += 1;
                Some(Output::Up(with(collided(&header))))
            }
            Action::Drop => None,
        })
    }

    /// Takes a packet of the parameter host, and gives what goes on to the workers.
    pub fn on_host(&mut self, now: u32, payload: &[u8]) -> Result<Output, Reason> {
        let header = Header::read(payload, 0, payload.len())?;
        let parent = WorkerEntry { ip: 1, ..WorkerEntry::default() };
        if let Down::One(rank) = admit::dynamic::result(&header, 1, &self.job, &parent, 0)? {
            return Ok(Output::Back(rank, payload.to_vec()));
        }
        if let Some(slot) = self.metas.get_mut(header.slot as usize) {
            *slot = release(slot, owner(header.job, header.epoch, header.lane), header.seq, now, PATIENCE);
        }
        Ok(Output::Down(payload.to_vec()))
    }
}
