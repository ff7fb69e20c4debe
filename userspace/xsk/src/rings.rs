//! The memory and the rings of one queue, by xsk-rs.

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    slice,
};

use xsk_rs::{
    CompQueue, FillQueue, FrameDesc, RxQueue, TxQueue, Umem,
    socket::{Fd, XdpStatistics},
};

/// `XDP_PKT_CONTD`: the packet continues in the next descriptor.
const CONTINUES: u32 = 1;

/// Descriptors that are taken from a ring at once.
const BATCH: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Start of its bytes in the UMEM.
    pub address: usize,
    pub len: usize,
    /// Whether the packet continues in the next descriptor.
    pub continues: bool,
}

/// The memory and the rings of one queue. Chunks are named by their number in the UMEM.
///
/// The implementation for a socket is [`XskRings`]. The queue's tests have one without a kernel.
pub trait FrameRings {
    /// Gives chunks to the kernel for receiving. Returns whether the ring had room for all; if not, none is
    /// given.
    ///
    /// # Safety
    ///
    /// Nothing may access the chunks until the kernel returns them by [`FrameRings::receive`].
    unsafe fn fill(&mut self, chunks: &[u32]) -> bool;

    /// Takes a batch of at most `limit` descriptors from the receive ring and returns their number.
    fn receive(&mut self, limit: usize) -> usize;

    fn piece(&self, index: usize) -> Piece;

    /// Returns the bytes of a descriptor of the last batch.
    ///
    /// # Safety
    ///
    /// The bytes must lie inside one chunk, and the kernel must not have that chunk.
    unsafe fn piece_bytes(&self, index: usize) -> &[u8];

    /// Returns the bytes of a chunk for sending.
    ///
    /// # Safety
    ///
    /// The kernel must not have the chunk.
    unsafe fn bytes_mut(&mut self, chunk: u32) -> &mut [u8];

    /// Stages the first `len` bytes of a chunk for sending.
    ///
    /// # Safety
    ///
    /// Nothing may access the chunk until the kernel returns it by [`FrameRings::completed`].
    unsafe fn stage(&mut self, chunk: u32, len: usize, continues: bool);

    /// Makes the staged descriptors visible to the kernel, which may have to be woken.
    fn publish(&mut self);

    /// Calls `each` with the address of every chunk that has been sent, and returns their number.
    fn completed(&mut self, each: impl FnMut(usize)) -> usize;

    /// Number of published descriptors that the kernel has not taken.
    fn pending(&mut self) -> u32;

    fn fill_needs_wakeup(&self) -> bool;
}

/// The rings of an AF_XDP socket, which is closed when they are dropped.
#[derive(Debug)]
pub struct XskRings {
    umem: Umem,
    /// The descriptors of all chunks, by number.
    chunks: Vec<FrameDesc>,
    fill: FillQueue,
    completion: CompQueue,
    rx: RxQueue,
    tx: TxQueue,
    tx_size: u32,
    staged: Vec<FrameDesc>,
    filling: Vec<FrameDesc>,
    batch: [FrameDesc; BATCH],
}

impl XskRings {
    pub(crate) fn new(
        (umem, chunks): (Umem, Vec<FrameDesc>),
        (tx, rx): (TxQueue, RxQueue),
        (fill, completion): (FillQueue, CompQueue),
        tx_size: u32,
    ) -> XskRings {
        XskRings {
            umem,
            chunks,
            fill,
            completion,
            rx,
            tx,
            tx_size,
            staged: Vec::new(),
            filling: Vec::new(),
            batch: [FrameDesc::default(); BATCH],
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the queues keep the socket open, and `self` keeps the queues.
        unsafe { BorrowedFd::borrow_raw(self.tx.fd().as_raw_fd()) }
    }

    pub(crate) fn statistics(&self) -> std::io::Result<XdpStatistics> {
        Fd::xdp_statistics(self.tx.fd())
    }

    pub(crate) fn tx_needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Makes the kernel send what the transmit ring holds. Transient errors and a link that is down are no
    /// errors here.
    pub(crate) fn wake_tx(&self) -> std::io::Result<()> {
        self.tx.wakeup()
    }

    /// Makes the driver look at the fill ring again.
    pub(crate) fn wake_rx(&mut self) -> std::io::Result<()> {
        self.fill.wakeup(self.rx.fd_mut(), 0)
    }
}

impl FrameRings for XskRings {
    unsafe fn fill(&mut self, chunks: &[u32]) -> bool {
        self.filling.clear();
        self.filling.extend(chunks.iter().filter_map(|chunk| self.chunks.get(*chunk as usize)));
        // SAFETY: the descriptors are of this UMEM, and the caller gives the chunks up.
        unsafe { self.fill.produce(&self.filling) == chunks.len() }
    }

    fn receive(&mut self, limit: usize) -> usize {
        let limit = limit.min(BATCH);
        // SAFETY: the batch is overwritten; the queue reports whether the kernel had the frames.
        unsafe { self.rx.consume(&mut self.batch[..limit]) }
    }

    fn piece(&self, index: usize) -> Piece {
        let descriptor = &self.batch[index];
        Piece {
            address: descriptor.addr(),
            len: descriptor.lengths().data(),
            continues: descriptor.options() & CONTINUES != 0,
        }
    }

    unsafe fn piece_bytes(&self, index: usize) -> &[u8] {
        // SAFETY: the caller has found the bytes to lie in a chunk of this UMEM that user space owns.
        unsafe { self.umem.data(&self.batch[index]) }.contents()
    }

    unsafe fn bytes_mut(&mut self, chunk: u32) -> &mut [u8] {
        let Some(descriptor) = self.chunks.get_mut(chunk as usize) else { return &mut [] };
        // SAFETY: the descriptor is of this UMEM, and user space owns the chunk.
        let mut data = unsafe { self.umem.data_mut(descriptor) };
        // xsk-rs shows a segment up to its length only.
        data.cursor().set_pos(usize::MAX);
        let bytes = data.contents_mut();
        // SAFETY: the same bytes, borrowed from `self` in place of the local variable.
        unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) }
    }

    unsafe fn stage(&mut self, chunk: u32, len: usize, continues: bool) {
        let Some(mut descriptor) = self.chunks.get(chunk as usize).copied() else { return };
        // SAFETY: the descriptor is of this UMEM, and user space still owns the chunk. Only its length is
        // set.
        unsafe { self.umem.data_mut(&mut descriptor) }.cursor().set_pos(len);
        descriptor.set_options(if continues { CONTINUES } else { 0 });
        self.staged.push(descriptor);
    }

    fn publish(&mut self) {
        // SAFETY: the descriptors are of this UMEM, and their chunks were given up when they were staged.
        if unsafe { self.tx.produce(&self.staged) } == self.staged.len() {
            self.staged.clear();
        }
    }

    fn completed(&mut self, mut each: impl FnMut(usize)) -> usize {
        let (mut batch, mut count) = ([FrameDesc::default(); BATCH], 0);
        loop {
            // SAFETY: the batch is overwritten; the queue reports whether the kernel had the frames.
            let taken = unsafe { self.completion.consume(&mut batch) };
            batch[..taken].iter().for_each(|descriptor| each(descriptor.addr()));
            count += taken;
            if taken < BATCH {
                return count;
            }
        }
    }

    fn pending(&mut self) -> u32 {
        self.tx_size - self.tx.nb_free_exact().min(self.tx_size)
    }

    fn fill_needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }
}
