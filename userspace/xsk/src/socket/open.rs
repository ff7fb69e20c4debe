//! From a configuration to a bound socket: memory, rings, fill, bind, in this order.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
    time::Duration,
};

use super::{Bound, Mode, Socket, SocketConfig};
use crate::{
    abi::Plain,
    error::{Attempt, OpenError, Step},
    layout::{LARGEST_PACKET, Layout as Frames},
    mapping::Mapping,
    port::Port,
    ring::{Completion, End, Fill, Layout, Rx, Side, Tx},
    syscall::{self, RingKind},
    umem::Umem,
};

const MAX_FRAMES: u32 = 1 << 16;
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(25);

pub(super) fn open(config: &SocketConfig) -> Result<Socket, OpenError> {
    check(config)?;
    let ifindex = syscall::ifindex(&config.interface)
        .map_err(|source| OpenError::NoInterface { interface: config.interface.clone(), source })?;
    match config.mode {
        Mode::ZeroCopy => attempt_patiently(config, ifindex, libc::XDP_ZEROCOPY, None),
        Mode::Copy => attempt_patiently(config, ifindex, libc::XDP_COPY, None),
        Mode::Auto => match attempt_patiently(config, ifindex, libc::XDP_ZEROCOPY, None) {
            Err(OpenError::NoZeroCopy { source, .. } | OpenError::NoQueue { source, .. }) => {
                // Some drivers answer EINVAL for "no zero-copy": only a copy bind tells whether the queue exists.
                let why = format!("the driver refused zero-copy: {source}");
                attempt_patiently(config, ifindex, libc::XDP_COPY, Some(why))
            }
            other => other,
        },
    }
}

fn check(config: &SocketConfig) -> Result<(), OpenError> {
    if config.frames == 0 || config.frames > MAX_FRAMES {
        let what = format!("{} frames each way", config.frames);
        return Err(OpenError::Config { what, must: "between 1 and 65,536" });
    }
    if !(64..=LARGEST_PACKET).contains(&config.packet_size) {
        let what = format!("packets of {} bytes", config.packet_size);
        return Err(OpenError::Config { what, must: "between 64 and 65,553" });
    }
    Ok(())
}

/// Tries again while the queue is busy, for a bounded time.
fn attempt_patiently(
    config: &SocketConfig,
    ifindex: u32,
    mode: u16,
    fallback: Option<String>,
) -> Result<Socket, OpenError> {
    for _ in 1..BUSY_TRIES {
        match attempt(config, ifindex, mode, fallback.clone()) {
            Err(OpenError::QueueInUse { .. }) => thread::sleep(BUSY_PAUSE),
            other => return other,
        }
    }
    attempt(config, ifindex, mode, fallback)
}

/// One socket, one UMEM, one bind.
fn attempt(
    config: &SocketConfig,
    ifindex: u32,
    mode: u16,
    fallback: Option<String>,
) -> Result<Socket, OpenError> {
    let layout = Frames::for_packets(config.packet_size, config.frames);
    let about = Attempt {
        interface: &config.interface,
        queue: config.queue,
        umem_bytes: layout.bytes(),
        zero_copy: mode == libc::XDP_ZEROCOPY,
    };
    let fail = |step| move |source| about.error(step, source);

    let fd = syscall::open().map_err(fail(Step::Create))?;
    let umem = Umem::new(layout).map_err(fail(Step::Allocate))?;
    let memory = umem.memory();
    // SAFETY: `Socket` closes the descriptor before it drops the port, and with it this memory. When a later step
    // fails the memory goes first, but then nothing is bound, and the kernel holds the pages by itself.
    unsafe { syscall::register_umem(fd.as_fd(), memory.address().as_ptr(), memory.len(), layout.chunk) }
        .map_err(fail(Step::Register))?;

    // All chunks fit into each ring, so no ring can overflow.
    let entries = layout.chunks().next_power_of_two();
    for ring in [RingKind::Fill, RingKind::Completion, RingKind::Rx, RingKind::Tx] {
        syscall::set_ring_size(fd.as_fd(), ring, entries).map_err(fail(Step::SizeRings))?;
    }
    let rings = Rings { fd: &fd, about, entries };
    let port = rings.port(umem)?;
    syscall::raise_send_buffer(fd.as_fd(), about.umem_bytes as usize * 2);

    // The driver sleeps until it is woken; without this flag some busy-poll.
    let scattered = if layout.is_scattered() { libc::XDP_USE_SG } else { 0 };
    let flags = mode | scattered | libc::XDP_USE_NEED_WAKEUP;
    syscall::bind(fd.as_fd(), ifindex, config.queue, flags).map_err(fail(Step::Bind))?;
    let zero_copy = syscall::is_zero_copy(fd.as_fd()).map_err(fail(Step::Ask))?;
    Ok(Socket { fd, port, bound: Bound { zero_copy, fallback } })
}

/// Maps the rings of a socket that is not bound yet.
struct Rings<'a> {
    fd: &'a OwnedFd,
    about: Attempt<'a>,
    entries: u32,
}

impl Rings<'_> {
    fn port(&self, umem: Umem) -> Result<Port, OpenError> {
        let at = syscall::offsets(self.fd.as_fd()).map_err(|e| self.about.error(Step::MapRings, e))?;
        let fill = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
        let completion = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
        let fill = Fill(self.end("fill", fill, &at.fr, Side::Producer)?);
        let completion = Completion(self.end("completion", completion, &at.cr, Side::Consumer)?);
        let rx = Rx(self.end("receive", libc::XDP_PGOFF_RX_RING, &at.rx, Side::Consumer)?);
        let tx = Tx(self.end("transmit", libc::XDP_PGOFF_TX_RING, &at.tx, Side::Producer)?);
        Ok(Port::new(umem, fill, rx, tx, completion))
    }

    fn end<T: Plain>(
        &self,
        ring: &'static str,
        page: libc::off_t,
        at: &libc::xdp_ring_offset,
        side: Side,
    ) -> Result<End<T>, OpenError> {
        let layout = Layout {
            producer: at.producer as usize,
            consumer: at.consumer as usize,
            flags: at.flags as usize,
            entries: at.desc as usize,
        };
        let len = layout.entries + self.entries as usize * size_of::<T>();
        let memory = Mapping::of(self.fd.as_fd(), len, page)
            .map_err(|source| self.about.error(Step::MapRings, source))?;
        // SAFETY: the kernel describes this mapping, its entries are of the ring's type, and each ring
        // is mapped once for its user-space side.
        unsafe { End::new(&Arc::new(memory), layout, self.entries, side) }.ok_or(OpenError::Layout { ring })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_configurations_are_named() {
        let good = SocketConfig::new("lo", 0);
        let cases = [
            (SocketConfig { frames: 0, ..good.clone() }, "0 frames"),
            (SocketConfig { frames: MAX_FRAMES + 1, ..good.clone() }, "65537 frames"),
            (SocketConfig { packet_size: 63, ..good.clone() }, "63 bytes"),
            (SocketConfig { packet_size: 70_000, ..good.clone() }, "70000 bytes"),
            (SocketConfig { interface: "no-such-if".into(), ..good.clone() }, "no interface no-such-if"),
            (SocketConfig { interface: "nul\0".into(), ..good }, "no interface"),
        ];
        for (config, expected) in cases {
            let error = Socket::open(&config).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
