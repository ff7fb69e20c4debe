//! A memfd that two processes map: the trainer makes it and allocates its pages, the daemon maps it.

use std::{
    io,
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::{
    fs::{self, FallocateFlags, MemfdFlags, SealFlags, SeekFrom},
    io::{Errno, retry_on_intr},
};

use crate::holder::{HeldMapping, Holder};
use crate::lease::{Lease, LeaseError, Lender};
use crate::word::Word;

/// An error of creating or mapping a shared region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    #[error("cannot share {size} bytes: the size must be between 1 byte and {} bytes", isize::MAX)]
    Size { size: u64 },
    #[error(
        "the descriptor is not a memfd of ordinary pages; create it with memfd_create(2) without MFD_HUGETLB"
    )]
    NotMemfd,
    /// A file that can still be truncated: an access behind its end raises SIGBUS.
    #[error(
        "the memfd lacks F_SEAL_SHRINK; create it with MFD_ALLOW_SEALING and add the seal before registering \
        it"
    )]
    NotSealed,
    /// Two mappings of one file would allow two exclusive leases on the same bytes.
    #[error(
        "the memfd is registered, or was (it has F_SEAL_SEAL, F_SEAL_WRITE or F_SEAL_FUTURE_WRITE, which the \
        daemon adds); register each memfd once, and create a new one for another region"
    )]
    Registered,
    /// The first access would allocate the page, and charge it to the daemon.
    #[error(
        "the memfd's page at byte {at} is not allocated; write to every page before registering it, or map \
        it with MAP_POPULATE"
    )]
    Hole { at: u64 },
    #[error("the memfd has {actual} bytes, {announced} were announced; call ftruncate(2) before sealing it")]
    TooShort { announced: u64, actual: u64 },
    #[error("cannot {action} a shared region of {size} bytes: {source}")]
    System { action: &'static str, size: u64, source: io::Error },
}

/// A mapped, sealed memfd. Clones refer to the same mapping, which is removed with the last clone and lease.
///
/// The *other process* may write to it at any time. Every byte pattern is valid, and this crate never decides
/// anything by reading a byte twice: a trainer that writes during an operation corrupts its own numbers only.
/// Within this process [`Lease`]s keep writers apart.
#[derive(Clone, Debug)]
pub struct SharedRegion {
    lender: Arc<Lender>,
}

/// The memfd's name in `/proc/PID/maps`.
const NAME: &str = "sumac-tensor";

/// `HUGETLBFS_MAGIC` of `linux/magic.h`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// The seals that a registration adds: no other process maps the file for writing any more, and none punches
/// a hole into it, whose pages would be charged to whoever touches them next.
const ADDED: SealFlags = SealFlags::SEAL.union(SealFlags::FUTURE_WRITE);

/// The seals of a file whose size stays.
const SIZED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The seals of a memfd that was registered. F_SEAL_SEAL marks it.
const REGISTERED: SealFlags = NO_WRITABLE_MAPPINGS.union(SealFlags::SEAL);

/// The seals that end all writable mappings to come. They also forbid to punch holes (`shmem_fallocate`).
const NO_WRITABLE_MAPPINGS: SealFlags = SealFlags::WRITE.union(SealFlags::FUTURE_WRITE);

impl SharedRegion {
    /// Creates and maps `size` zero bytes for a trainer, sealed against shrinking and growing.
    ///
    /// All pages are allocated and zeroed here, so that the kernel charges them to this process and not to
    /// the daemon. The descriptor is for the daemon; the mapping does not depend on it.
    pub fn create(size: usize) -> Result<(SharedRegion, OwnedFd), RegionError> {
        let fd = memfd(size)?;
        // It reports exhausted memory as an error; populating the mapping does not.
        retry_on_intr(|| fs::fallocate(&fd, FallocateFlags::empty(), 0, size as u64))
            .map_err(system_error("allocate", size as u64))?;
        let mapping = map(MmapOptions::new().populate(), &fd, size)?;
        seal(&fd, SIZED, size)?;
        Ok((SharedRegion { lender: Arc::new(Lender::new(mapping, None)) }, fd))
    }

    /// Creates and maps `size` zero bytes that this process alone can write.
    ///
    /// The kernel refuses every further writable mapping of the descriptor, and `write`, so that others read
    /// by it ([`ReadRegion`](crate::ReadRegion)). Its pages are allocated, and charged to, those who map it
    /// first: [`SharedRegion::check_pages`] fails before.
    pub fn for_readers(size: usize) -> Result<(SharedRegion, OwnedFd), RegionError> {
        let fd = memfd(size)?;
        let mapping = map(&mut MmapOptions::new(), &fd, size)?;
        seal(&fd, SIZED | ADDED, size)?;
        Ok((SharedRegion { lender: Arc::new(Lender::new(mapping, None)) }, fd))
    }

    /// Checks that all pages of the region's file are allocated: none is by an access then.
    pub fn check_pages(&self, fd: BorrowedFd<'_>) -> Result<(), RegionError> {
        check_pages(fd, self.len())
    }

    /// Maps the first `size` bytes of a memfd that a trainer created, and seals it.
    ///
    /// Refuses every file whose later access could raise SIGBUS or allocate a page: one that is no memfd, can
    /// shrink, is too short, or has a hole. No hole can be punched later (fallocate(2) and `MADV_REMOVE`
    /// return EPERM). Kernel and seal decide between concurrent registrations.
    pub fn from_fd(fd: BorrowedFd<'_>, size: usize) -> Result<SharedRegion, RegionError> {
        let seals = check_memfd(fd, size as u64)?;
        if seals.intersects(REGISTERED) {
            return Err(RegionError::Registered);
        }
        check_length(fd, size)?;
        let mapping = map(&mut MmapOptions::new(), &fd, size)?;
        let announced = size as u64;
        // F_SEAL_SEAL makes it fail for all but the first of concurrent registrations.
        fs::fcntl_add_seals(fd, ADDED).map_err(|errno| match errno {
            Errno::PERM => RegionError::Registered,
            errno => system_error("seal", announced)(errno),
        })?;
        // Only now can no page disappear any more.
        check_pages(fd, size)?;
        // Enters the pages into this process's page table; without it (before Linux 5.14) the first accesses
        // do.
        let _ = mapping.advise(Advice::PopulateWrite);
        Ok(SharedRegion { lender: Arc::new(Lender::new(mapping, None)) })
    }

    /// Maps a region for reading that another daemon has registered. Its writable mapping is at this address
    /// of its holder.
    pub fn taken_over(
        fd: BorrowedFd<'_>,
        size: usize,
        holder: &Arc<Holder>,
        address: u64,
    ) -> Result<SharedRegion, RegionError> {
        check_memfd(fd, size as u64)?;
        check_length(fd, size)?;
        let mapping = MmapOptions::new().len(size).map_raw_read_only(fd.as_raw_fd());
        let mapping = mapping.map_err(system_error("map", size as u64))?;
        let _ = mapping.advise(Advice::WillNeed);
        let held = HeldMapping { holder: holder.clone(), address };
        Ok(SharedRegion { lender: Arc::new(Lender::new(mapping, Some(held))) })
    }

    /// Returns the address of the writable mapping, here or in its holder.
    pub fn address(&self) -> u64 {
        self.lender.address()
    }

    /// Returns the holder of the writable mapping; `None` if it is this process.
    pub fn holder(&self) -> Option<&Arc<Holder>> {
        self.lender.held.as_ref().map(|held| &held.holder)
    }

    /// Maps anonymous memory in a memfd's place. Miri has no memfd.
    #[cfg(test)]
    pub(crate) fn anonymous(size: usize) -> SharedRegion {
        let mapping = MmapOptions::new().len(size).map_anon().unwrap();
        SharedRegion { lender: Arc::new(Lender::new(mapping.into(), None)) }
    }

    /// Number of bytes in the region; never zero.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.lender.len()
    }

    /// Leases `input` for reading and `output` for writing. The two may be the same range.
    ///
    /// Leases that exist at the same time may read the same bytes. Bytes that one of them writes, no other
    /// reads or writes.
    pub fn lease(&self, input: Range<usize>, output: Range<usize>) -> Result<Lease, LeaseError> {
        Lender::lease(&self.lender, input, output)
    }

    /// Leases the 64-bit word at a byte offset, a multiple of 8.
    pub fn word(&self, offset: usize) -> Result<Word, LeaseError> {
        Word::new(&self.lender, offset)
    }
}

/// Creates a file of this size, without pages.
fn memfd(size: usize) -> Result<OwnedFd, RegionError> {
    let announced = size as u64;
    check_size(announced)?;
    let fd = fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(system_error("create", announced))?;
    fs::ftruncate(&fd, announced).map_err(system_error("size", announced))?;
    Ok(fd)
}

fn check_pages(fd: BorrowedFd<'_>, size: usize) -> Result<(), RegionError> {
    let announced = size as u64;
    let hole = fs::seek(fd, SeekFrom::Hole(0)).map_err(system_error("examine", announced))?;
    if hole < announced {
        return Err(RegionError::Hole { at: hole });
    }
    Ok(())
}

fn seal(fd: &OwnedFd, seals: SealFlags, size: usize) -> Result<(), RegionError> {
    fs::fcntl_add_seals(fd, seals).map_err(system_error("seal", size as u64))
}

/// Returns the seals of a memfd of ordinary pages.
fn check_memfd(fd: BorrowedFd<'_>, announced: u64) -> Result<SealFlags, RegionError> {
    check_size(announced)?;
    // F_GET_SEALS fails on everything but a memfd, so it comes first: other files may block in any call.
    let seals = fs::fcntl_get_seals(fd).map_err(|_| RegionError::NotMemfd)?;
    // Huge pages may run out at the time of access.
    if fs::fstatfs(fd).map_err(system_error("examine", announced))?.f_type as u64 == HUGETLBFS_MAGIC {
        return Err(RegionError::NotMemfd);
    }
    // Files of a tmpfs have F_SEAL_SEAL alone.
    if !seals.contains(SealFlags::SHRINK) {
        return Err(RegionError::NotSealed);
    }
    Ok(seals)
}

pub(crate) fn check_length(fd: BorrowedFd<'_>, size: usize) -> Result<(), RegionError> {
    let announced = size as u64;
    let stat = fs::fstat(fd).map_err(system_error("examine", announced))?;
    let actual = u64::try_from(stat.st_size).unwrap_or(0);
    if actual < announced {
        return Err(RegionError::TooShort { announced, actual });
    }
    Ok(())
}

fn map(options: &mut MmapOptions, fd: &impl AsRawFd, size: usize) -> Result<MmapRaw, RegionError> {
    options.len(size).map_raw(fd.as_raw_fd()).map_err(system_error("map", size as u64))
}

pub(crate) fn system_error<E: Into<io::Error>>(action: &'static str, size: u64) -> impl Fn(E) -> RegionError {
    move |error| RegionError::System { action, size, source: error.into() }
}

pub(crate) fn check_size(size: u64) -> Result<(), RegionError> {
    match isize::try_from(size) {
        Ok(1..) => Ok(()),
        _ => Err(RegionError::Size { size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeldRegions;
    use std::{
        io::{Read as _, Write as _},
        os::fd::AsFd,
        process::{Command, Stdio},
        thread::JoinHandle,
    };

    /// A memfd whose pages are allocated, with these seals.
    fn sealed(size: u64, seals: SealFlags) -> OwnedFd {
        let fd = sparse(size);
        rustix::io::pwrite(&fd, &vec![0; size as usize], 0).unwrap();
        fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn sparse(size: u64) -> OwnedFd {
        let fd = fs::memfd_create(NAME, MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        fs::ftruncate(&fd, size).unwrap();
        fd
    }

    fn open(fd: &OwnedFd, size: usize) -> Result<(), RegionError> {
        SharedRegion::from_fd(fd.as_fd(), size).map(|_| ())
    }

    #[test]
    fn both_mappings_have_the_same_bytes() {
        let (mine, fd) = SharedRegion::create(10_000).unwrap();
        let theirs = SharedRegion::from_fd(fd.as_fd(), 10_000).unwrap();
        drop(fd);
        let mut mine = mine.lease(0..10_000, 9_996..10_000).unwrap();
        let mut theirs = theirs.lease(0..10_000, 0..5).unwrap();
        mine.output(0, 4).unwrap().copy_from_slice(b"here");
        assert_eq!(theirs.input(9_996, 4).unwrap(), b"here");
        theirs.output(0, 5).unwrap().copy_from_slice(b"there");
        assert_eq!(mine.input(0, 5).unwrap(), b"there");
    }

    #[test]
    fn a_descriptor_that_could_raise_sigbus_is_refused() {
        assert!(matches!(open(&sealed(4096, SealFlags::empty()), 4096), Err(RegionError::NotSealed)));
        assert!(matches!(open(&sealed(4096, SealFlags::GROW), 4096), Err(RegionError::NotSealed)));
        let short = sealed(4095, SealFlags::SHRINK);
        assert!(matches!(open(&short, 4096), Err(RegionError::TooShort { announced: 4096, actual: 4095 })));
        assert!(matches!(open(&short, 0), Err(RegionError::Size { size: 0 })));
        assert!(matches!(open(&short, usize::MAX), Err(RegionError::Size { .. })));
        // A file of a tmpfs would have seals.
        let file = OwnedFd::from(std::fs::File::open("/proc/self/status").unwrap());
        assert!(matches!(open(&file, 1), Err(RegionError::NotMemfd)));
        let whole = sealed(4096, SealFlags::SHRINK);
        let read_only = std::fs::File::open(format!("/proc/self/fd/{}", whole.as_raw_fd())).unwrap();
        assert!(matches!(open(&read_only.into(), 4096), Err(RegionError::System { .. })));
    }

    #[test]
    fn the_seal_prevents_shrinking() {
        let (region, fd) = SharedRegion::create(8192).unwrap();
        assert_eq!(fs::ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(region.len(), 8192);
    }

    #[test]
    fn a_file_with_a_hole_is_refused() {
        let fd = sparse(3 * 4096);
        rustix::io::pwrite(&fd, &[1; 4097], 0).unwrap();
        fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(matches!(open(&fd, 3 * 4096), Err(RegionError::Hole { at: 8192 })));
        assert_eq!(fs::fstat(&fd).unwrap().st_blocks, 16, "the daemon has allocated a page");
        // Pages beyond those that are registered do not count.
        let fd = sparse(3 * 4096);
        rustix::io::pwrite(&fd, &[1; 4097], 0).unwrap();
        fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        open(&fd, 8192).unwrap();
    }

    #[test]
    fn no_hole_can_be_punched_under_the_daemon() {
        let (_mine, fd) = SharedRegion::create(8192).unwrap();
        let daemons = SharedRegion::from_fd(fd.as_fd(), 8192).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fs::fallocate(&fd, punch, 0, 4096), Err(Errno::PERM));
        assert_eq!(fs::seek(&fd, SeekFrom::Hole(0)), Ok(8192));
        assert_eq!(daemons.lease(0..8192, 0..8192).unwrap().input(0, 8192).map(<[u8]>::len), Some(8192));
    }

    #[test]
    fn a_file_is_registered_once() {
        let (_mine, fd) = SharedRegion::create(4096).unwrap();
        let first = SharedRegion::from_fd(fd.as_fd(), 4096).unwrap();
        assert!(matches!(open(&fd, 4096), Err(RegionError::Registered)));
        drop(first);
        // Its trainer may still write to it.
        assert!(matches!(open(&fd, 4096), Err(RegionError::Registered)));
        let closed = sealed(4096, SealFlags::SHRINK | SealFlags::SEAL);
        assert!(matches!(open(&closed, 4096), Err(RegionError::Registered)));
    }

    /// A region that one daemon has registered, and another takes over. Both are in this process.
    fn handed_over(fd: &OwnedFd, size: usize) -> (JoinHandle<()>, Arc<Holder>, SharedRegion) {
        let first = SharedRegion::from_fd(fd.as_fd(), size).unwrap();
        let (mut own, holder) = HeldRegions::prepare().unwrap();
        let holder = Arc::new(holder);
        let second = SharedRegion::taken_over(fd.as_fd(), size, &holder, first.address()).unwrap();
        own.insert(first);
        (std::thread::spawn(move || own.keep()), holder, second)
    }

    #[test]
    fn what_a_successor_writes_reaches_the_trainer_through_the_holder() {
        let size = 300_000;
        let (mine, fd) = SharedRegion::create(size).unwrap();
        let (keeping, holder, second) = handed_over(&fd, size);
        assert!(matches!(map(&mut MmapOptions::new(), &fd, size), Err(RegionError::System { .. })));
        let seen =
            |at: usize, len: usize| mine.lease(at..at + len, 0..0).unwrap().input(0, len).unwrap().to_vec();
        mine.lease(0..0, 0..size).unwrap().output(0, size).unwrap().fill(9);
        let mut lease = second.lease(0..size, 1000..size).unwrap();
        // Pieces in order, out of order, long ones, and one twice.
        for (at, len, value) in [(0, 100, 1), (100, 100, 2), (90_000, 7, 3), (200, 80_000, 4), (50, 10, 5)] {
            let output = lease.output(at, len).unwrap();
            assert_eq!(output.len(), len);
            output.fill(value);
        }
        assert!(lease.output(size - 1000, 1).is_none());
        assert_eq!(lease.output(60, 2), Some(&mut [1, 1][..]), "what was written before");
        lease.write_back().unwrap();
        assert_eq!(seen(1000, 50), [1; 50]);
        assert_eq!(seen(1050, 12), [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 1, 1]);
        assert_eq!(seen(1100, 101)[99..], [2, 4]);
        assert_eq!(seen(80_999 + 200, 2), [4, 9]);
        assert_eq!(seen(90_999, 9), [9, 3, 3, 3, 3, 3, 3, 3, 9]);
        assert_eq!(lease.input(91_000, 1), Some(&[3][..]));
        drop(lease);
        let word = second.word(64).unwrap();
        word.release_with(u64::MAX).unwrap();
        assert_eq!(mine.word(64).unwrap().load(), u64::MAX);
        drop(second);
        // The holder has nothing left to hold.
        keeping.join().unwrap();
        drop(holder);
    }

    #[test]
    fn a_holder_ends_with_its_last_region_or_its_successor() {
        let (_mine, fd) = SharedRegion::create(8192).unwrap();
        let (keeping, holder, second) = handed_over(&fd, 8192);
        // The successor fails, or hands over in its turn: the mapping stays.
        holder.leave();
        let third = Arc::new(Holder::new(holder.descriptors().map(|fd| fd.try_clone_to_owned().unwrap())));
        let region = SharedRegion::taken_over(fd.as_fd(), 8192, &third, second.address()).unwrap();
        drop((second, holder));
        assert!(!keeping.is_finished());
        region.lease(0..0, 0..8).unwrap().output(0, 8).unwrap().fill(1);
        third.leave();
        drop((region, third));
        keeping.join().unwrap();
        let (_mine, fd) = SharedRegion::create(4096).unwrap();
        let (keeping, holder, _region) = handed_over(&fd, 4096);
        let short = SharedRegion::taken_over(fd.as_fd(), 8192, &holder, 0);
        assert!(matches!(short, Err(RegionError::TooShort { .. })));
        assert!(!keeping.is_finished());
    }

    #[test]
    fn a_write_to_a_holder_that_has_ended_fails() {
        let (_mine, fd) = SharedRegion::create(4096).unwrap();
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Until it has answered, its memory may be this process's: that of a child of vfork before its exec.
        cat.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let memory = std::fs::File::options().write(true).open(format!("/proc/{}/mem", cat.id())).unwrap();
        cat.kill().unwrap();
        cat.wait().unwrap();
        let (_own, prepared) = HeldRegions::prepare().unwrap();
        let link = prepared.descriptors()[1].try_clone_to_owned().unwrap();
        let holder = Arc::new(Holder::new([memory.into(), link]));
        let first = SharedRegion::from_fd(fd.as_fd(), 4096).unwrap();
        let region = SharedRegion::taken_over(fd.as_fd(), 4096, &holder, first.address()).unwrap();
        let mut lease = region.lease(0..0, 0..4096).unwrap();
        assert!(lease.output(0, 4096).is_some(), "the error is kept");
        assert!(lease.write_back().is_err());
        assert!(region.word(0).is_err(), "still leased");
        drop(lease);
        assert!(region.word(0).unwrap().release_with(1).is_err());
    }

    #[test]
    fn one_of_concurrent_registrations_succeeds() {
        for _ in 0..50 {
            let (_mine, fd) = SharedRegion::create(4096).unwrap();
            let registered: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| open(&fd, 4096).ok())).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).count()
            });
            assert_eq!(registered, 1);
        }
    }
}
