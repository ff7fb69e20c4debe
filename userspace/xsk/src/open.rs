//! From a configuration to a bound socket: UMEM, rings and bind, then fill.
//!
//! xsk-rs keeps the fill ring, which libxdp makes with the UMEM, until the socket is bound. So the chunks
//! are filled after the bind and the driver is woken. A driver that misses the wake-up receives nothing,
//! which the caller has to find out.

use std::{error::Error, io, num::NonZeroU32, thread, time::Duration};

use xsk_rs::{
    Socket, Umem,
    config::{BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig},
};

use crate::{
    config::{BindMode, Bound, LINK_HEADER, QueueConfig},
    error::{Attempt, OpenError, Step},
    layout::{LARGEST_PACKET, UmemLayout},
    queue::XskQueue,
    rings::XskRings,
    sockopt,
};

/// A packet of the usual MTU: it fits any chunk.
const SMALL_PACKET: u32 = 1500 + LINK_HEADER;
const MAX_FRAMES: u32 = 1 << 16;
const BUSY_RETRIES: u32 = 20;
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(25);

impl XskQueue {
    /// Opens a socket and binds it.
    ///
    /// With [`BindMode::Auto`] a refused zero-copy bind is repeated in copy mode, with a new socket and a new
    /// UMEM, because the kernel may have kept the old ones. A queue that is busy is retried for half a
    /// second: the kernel releases the queue of a closed socket, and its locked memory, with a delay.
    pub fn open(config: &QueueConfig) -> Result<XskQueue, OpenError> {
        check(config)?;
        let missing = |source| OpenError::NoInterface { interface: config.interface.clone(), source };
        sockopt::check_interface(&config.interface).map_err(missing)?;
        let opened = match config.mode {
            BindMode::ZeroCopy => retry_while_busy(config, BindFlags::XDP_ZEROCOPY, None)
                .map_err(|error| error.of_zero_copy(|| attempt(config, BindFlags::XDP_COPY, None).is_ok())),
            BindMode::Copy => retry_while_busy(config, BindFlags::XDP_COPY, None),
            BindMode::Auto => match retry_while_busy(config, BindFlags::XDP_ZEROCOPY, None) {
                Err(error) => match error.copy_reason() {
                    Some(reason) => retry_while_busy(config, BindFlags::XDP_COPY, Some(reason)),
                    None => Err(error),
                },
                bound => bound,
            },
        };
        if !UmemLayout::for_packets(config.packet_size, config.frames, false).is_multi_buffer() {
            return opened;
        }
        let small = QueueConfig { packet_size: SMALL_PACKET, ..config.clone() };
        opened.map_err(|error| {
            error.of_multi_buffer(config.packet_size, || attempt(&small, BindFlags::XDP_COPY, None).is_ok())
        })
    }
}

fn check(config: &QueueConfig) -> Result<(), OpenError> {
    if config.frames == 0 || config.frames > MAX_FRAMES {
        let value = format!("{} frames in each direction", config.frames);
        return Err(OpenError::Config { value, required: "between 1 and 65,536" });
    }
    if !(64..=LARGEST_PACKET).contains(&config.packet_size) {
        let value = format!("packets of {} bytes", config.packet_size);
        return Err(OpenError::Config { value, required: "between 64 and 65,553" });
    }
    Ok(())
}

fn retry_while_busy(
    config: &QueueConfig,
    mode: BindFlags,
    fallback: Option<String>,
) -> Result<XskQueue, OpenError> {
    for _ in 1..BUSY_RETRIES {
        match attempt(config, mode, fallback.clone()) {
            Err(OpenError::QueueInUse { .. } | OpenError::MemLock { .. }) => thread::sleep(BUSY_RETRY_DELAY),
            other => return other,
        }
    }
    attempt(config, mode, fallback)
}

fn attempt(config: &QueueConfig, mode: BindFlags, fallback: Option<String>) -> Result<XskQueue, OpenError> {
    let zero_copy = mode.contains(BindFlags::XDP_ZEROCOPY);
    let layout = UmemLayout::for_packets(config.packet_size, config.frames, zero_copy);
    let attempt =
        Attempt { interface: &config.interface, queue: config.queue, umem_bytes: layout.bytes(), zero_copy };
    let fail = |step| move |error: Box<dyn Error>| attempt.error(step, io_error(&*error));

    // All chunks fit into each ring, so no ring can overflow.
    let entries = layout.chunks().next_power_of_two();
    let (umem, chunks) = make_umem(layout, entries).map_err(fail(Step::Umem))?;
    let (tx, rx, rings) = bind(config, layout, mode, entries, &umem).map_err(fail(Step::Bind))?;
    let rings = rings.ok_or_else(|| fail(Step::Bind)("libxdp returned no fill ring".into()))?;
    let rings = XskRings::new((umem, chunks), (tx, rx), rings, entries);
    sockopt::close_on_exec(rings.fd()).map_err(|error| attempt.error(Step::Options, error))?;
    sockopt::raise_send_buffer(rings.fd(), attempt.umem_bytes as usize * 2);
    let zero_copy = sockopt::is_zero_copy(rings.fd()).map_err(|error| attempt.error(Step::Options, error))?;
    let mut queue = XskQueue::new(layout, rings, Bound { zero_copy, fallback });
    queue.wake_fill();
    Ok(queue)
}

fn make_umem(layout: UmemLayout, entries: u32) -> Result<(Umem, Vec<xsk_rs::FrameDesc>), Box<dyn Error>> {
    let config = UmemConfig::builder()
        .frame_size(FrameSize::new(layout.chunk)?)
        .fill_queue_size(QueueSize::new(entries)?)
        .comp_queue_size(QueueSize::new(entries)?)
        .build()?;
    let count = NonZeroU32::new(layout.chunks()).ok_or("no frames")?;
    Ok(Umem::new(config, count, false)?)
}

type Queues = (xsk_rs::TxQueue, xsk_rs::RxQueue, Option<(xsk_rs::FillQueue, xsk_rs::CompQueue)>);

fn bind(
    config: &QueueConfig,
    layout: UmemLayout,
    mode: BindFlags,
    entries: u32,
    umem: &Umem,
) -> Result<Queues, Box<dyn Error>> {
    let interface: Interface = config.interface.parse()?;
    let multi_buffer = if layout.is_multi_buffer() { BindFlags::XDP_USE_SG } else { BindFlags::empty() };
    let socket = SocketConfig::builder()
        .rx_queue_size(QueueSize::new(entries)?)
        .tx_queue_size(QueueSize::new(entries)?)
        // The host program is pinned on the interface; libxdp must not replace it.
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        // The driver sleeps until it is woken. Without need-wakeup some drivers busy-poll.
        .bind_flags(mode | multi_buffer | BindFlags::XDP_USE_NEED_WAKEUP)
        .build();
    // SAFETY: libxdp loads no program, so it has none to free.
    Ok(unsafe { Socket::new(socket, umem, &interface, config.queue) }?)
}

fn io_error(error: &dyn Error) -> io::Error {
    let code = error.source().and_then(|source| source.downcast_ref::<io::Error>()?.raw_os_error());
    code.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_configurations_are_named() {
        let good = QueueConfig::new("lo", 0);
        let cases = [
            (QueueConfig { frames: 0, ..good.clone() }, "0 frames"),
            (QueueConfig { frames: MAX_FRAMES + 1, ..good.clone() }, "65537 frames"),
            (QueueConfig { packet_size: 63, ..good.clone() }, "63 bytes"),
            (QueueConfig { packet_size: 70_000, ..good.clone() }, "70000 bytes"),
            (QueueConfig { interface: "no-such-if".into(), ..good.clone() }, "no interface no-such-if"),
            (QueueConfig { interface: "nul\0".into(), ..good }, "no interface"),
        ];
        for (config, expected) in cases {
            let error = XskQueue::open(&config).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
