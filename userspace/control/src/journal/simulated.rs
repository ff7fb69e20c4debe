//! A file system under the journal that fails as disks do, from a seed: writes that are short, torn or
//! reordered at a crash, writes and syncs that fail, and syncs that do nothing.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::{FileOf, Storage};

const SECTOR: usize = 64;

/// The probability of each fault.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// A write that writes less than it was given.
    pub short: f64,
    pub write_fails: f64,
    /// A sync that fails. As in Linux, the pages count as written, whether they were or not.
    pub sync_fails: f64,
    /// A sync that reports success and does nothing.
    pub sync_lost: f64,
    pub rename_fails: f64,
    /// The bytes that the disk has room for; `None`: any number.
    pub capacity: Option<usize>,
}

#[derive(Debug, Default)]
struct SimFile {
    cached: Vec<u8>,
    on_disk: Vec<u8>,
    /// Sectors that differ from the disk's, and that no later sync writes.
    lost: BTreeSet<usize>,
}

impl SimFile {
    fn sectors(&self) -> usize {
        self.cached.len().max(self.on_disk.len()).div_ceil(SECTOR)
    }

    fn is_dirty(&self, sector: usize) -> bool {
        let of = |bytes: &[u8]| bytes.iter().skip(sector * SECTOR).take(SECTOR).copied().collect::<Vec<_>>();
        of(&self.cached) != of(&self.on_disk)
    }

    /// Writes one sector to the disk, up to a byte of it.
    fn write_back(&mut self, sector: usize, bytes: usize) {
        let at = sector * SECTOR;
        let new: Vec<u8> = self.cached.iter().skip(at).take(bytes).copied().collect();
        let end = at + new.len();
        if self.on_disk.len() < end {
            self.on_disk.resize(end, 0);
        }
        self.on_disk[at..end].copy_from_slice(&new);
    }

    fn sync(&mut self) {
        self.on_disk.truncate(self.cached.len());
        for sector in 0..self.sectors() {
            if !self.lost.contains(&sector) {
                self.write_back(sector, SECTOR);
            }
        }
        // The length is metadata, which the failed sync of other pages does not undo.
        self.on_disk.resize(self.cached.len(), 0);
    }
}

struct SimDisk {
    rng: ChaCha8Rng,
    faults: Faults,
    files: Vec<SimFile>,
    /// The files of the names `journal` and `journal.part`, now and on the disk.
    names: [Option<usize>; 2],
    names_on_disk: [Option<usize>; 2],
}

/// Shares its state with its clones: the journal has one, the test another.
#[derive(Clone)]
pub(crate) struct Simulated(Arc<Mutex<SimDisk>>);

impl Simulated {
    pub fn new(seed: u64) -> Simulated {
        let names = [Some(0), None];
        Simulated(Arc::new(Mutex::new(SimDisk {
            rng: ChaCha8Rng::seed_from_u64(seed),
            faults: Faults::default(),
            files: vec![SimFile::default()],
            names,
            names_on_disk: names,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, SimDisk> {
        self.0.lock().unwrap()
    }

    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// The bytes that the journal takes up.
    pub fn used(&self) -> usize {
        self.lock().used()
    }

    /// The machine loses power: of what was not synced, any sectors are on the disk, one of them in part.
    pub fn crash(&self) {
        let mut disk = self.lock();
        let SimDisk { rng, files, names, names_on_disk, .. } = &mut *disk;
        for file in files.iter_mut() {
            let keeps_old_len = rng.random_bool(0.5);
            if !keeps_old_len {
                file.on_disk.truncate(file.cached.len());
            }
            for sector in 0..file.sectors() {
                if file.is_dirty(sector) && rng.random_bool(0.5) {
                    let bytes = if rng.random_bool(0.3) { rng.random_range(0..SECTOR) } else { SECTOR };
                    file.write_back(sector, bytes);
                }
            }
            file.cached = file.on_disk.clone();
            file.lost.clear();
        }
        if rng.random_bool(0.5) {
            *names_on_disk = *names;
        }
        *names = *names_on_disk;
    }
}

impl SimDisk {
    fn happens(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn used(&self) -> usize {
        self.names.iter().flatten().map(|file| self.files[*file].cached.len()).sum()
    }

    fn of(&mut self, file: FileOf) -> io::Result<&mut SimFile> {
        let number = self.names[file as usize].ok_or(io::ErrorKind::NotFound)?;
        Ok(&mut self.files[number])
    }
}

fn broken() -> io::Error {
    io::Error::other("the disk is broken")
}

impl Storage for Simulated {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.lock().of(FileOf::Journal)?.cached.clone())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut disk = self.lock();
        let fails = disk.faults.write_fails;
        if disk.happens(fails) {
            return Err(broken());
        }
        disk.of(FileOf::Journal)?.cached.truncate(len as usize);
        Ok(())
    }

    fn create_part(&mut self) -> io::Result<()> {
        let mut disk = self.lock();
        disk.files.push(SimFile::default());
        disk.names[1] = Some(disk.files.len() - 1);
        Ok(())
    }

    fn write(&mut self, file: FileOf, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.lock();
        let Faults { short, write_fails, capacity, .. } = disk.faults;
        let mut len = bytes.len();
        if disk.happens(short) {
            len = disk.rng.random_range(1..=len);
        }
        if let Some(capacity) = capacity {
            let room = capacity.saturating_sub(disk.used());
            if room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            len = len.min(room);
        }
        let fails = disk.happens(write_fails);
        if fails {
            len = disk.rng.random_range(0..=len);
        }
        let of = disk.of(file)?;
        let (first, end) = (of.cached.len() / SECTOR, (of.cached.len() + len).div_ceil(SECTOR));
        of.lost.retain(|sector| !(first..end).contains(sector));
        of.cached.extend_from_slice(&bytes[..len]);
        if fails { Err(broken()) } else { Ok(len) }
    }

    fn sync(&mut self, file: FileOf) -> io::Result<()> {
        let mut disk = self.lock();
        let Faults { sync_fails, sync_lost, .. } = disk.faults;
        if disk.happens(sync_lost) {
            return Ok(());
        }
        let (fails, mut rng) = (disk.happens(sync_fails), ChaCha8Rng::from_rng(&mut disk.rng));
        let of = disk.of(file)?;
        if !fails {
            of.sync();
            return Ok(());
        }
        let dirty: Vec<_> = (0..of.sectors()).filter(|sector| of.is_dirty(*sector)).collect();
        of.lost.extend(dirty.into_iter().filter(|_| rng.random_bool(0.5)));
        of.sync();
        Err(broken())
    }

    fn rename_part(&mut self) -> io::Result<()> {
        let mut disk = self.lock();
        let fails = disk.faults.rename_fails;
        if disk.happens(fails) {
            return Err(broken());
        }
        disk.names = [disk.names[1], None];
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let mut disk = self.lock();
        let Faults { sync_fails, sync_lost, .. } = disk.faults;
        if disk.happens(sync_fails) {
            return Err(broken());
        }
        if !disk.happens(sync_lost) {
            disk.names_on_disk = disk.names;
        }
        Ok(())
    }

    fn remove_part(&mut self) -> io::Result<()> {
        self.lock().names[1] = None;
        Ok(())
    }
}
