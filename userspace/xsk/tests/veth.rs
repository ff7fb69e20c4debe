//! AF_XDP sockets on a real kernel. Every test needs CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN (for the
//! namespace).
//!
//! ```text
//!   thread's namespace:   socket A -- xa ======= xb -- socket B     (veth, XDP in driver mode on both ends)
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sumac_xsk::{BindMode, LINK_HEADER, OpenError, QueueConfig, XskQueue};
use support::{Redirect, in_namespace, veth};

const LEN: usize = 200;

fn config(interface: &str, mode: BindMode) -> QueueConfig {
    QueueConfig { frames: 64, mode, ..QueueConfig::new(interface, 0) }
}

/// Writes an Ethernet frame of the local experimental type that carries a number.
fn write(bytes: &mut [u8], number: u32) {
    bytes[..LEN].fill(number as u8);
    bytes[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
}

/// Submits the frames from `next` to `end`, as far as there is room.
fn send(queue: &mut XskQueue, next: &mut u32, end: u32) {
    while *next < end {
        let Some(mut frame) = queue.frame() else { break };
        write(queue.bytes_mut(&mut frame), *next);
        queue.submit(frame, LEN).unwrap();
        *next += 1;
    }
    queue.flush().unwrap();
}

/// Waits until every sent frame is completed.
fn settle(queue: &mut XskQueue) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while queue.conservation().sent > 0 && Instant::now() < deadline {
        queue.flush().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let conservation = queue.conservation();
    assert!(conservation.holds() && conservation.sent == 0, "{conservation:?}");
}

#[test]
fn frames_cross_a_veth_in_order_without_loss_or_leak() {
    in_namespace("frames_cross_a_veth", || {
        veth("xa", "xb");
        let programs = [Redirect::attach("xa").unwrap(), Redirect::attach("xb").unwrap()];
        let mut a = XskQueue::open(&config("xa", BindMode::Auto)).unwrap();
        let mut b = XskQueue::open(&config("xb", BindMode::Copy)).unwrap();
        programs[0].set_socket(0, a.as_fd()).unwrap();
        programs[1].set_socket(0, b.as_fd()).unwrap();

        const COUNT: u32 = 5000;
        let (mut next, mut arrived) = (0, 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while arrived < COUNT && Instant::now() < deadline {
            // Never more in flight than B has frames for.
            let end = COUNT.min(arrived + 48);
            send(&mut a, &mut next, end);
            let mut fds = [PollFd::new(b.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(100u8)).unwrap();
            b.receive(usize::MAX, |packet| {
                let mut expected = [0; LEN];
                write(&mut expected, arrived);
                assert_eq!(packet, expected, "packet {arrived}");
                arrived += 1;
            });
        }
        assert_eq!(arrived, COUNT, "{:?} {:?}", a.statistics(), b.statistics());
        settle(&mut a);
        settle(&mut b);
        let statistics = b.statistics().unwrap();
        assert_eq!((statistics.rx_dropped, statistics.rx_ring_full), (0, 0), "{statistics:?}");
        assert_eq!(a.statistics().unwrap().tx_invalid_descriptors, 0);
    });
}

/// Sends packets of these lengths from A to B, `rounds` times, and compares them.
fn cross(mtu: u32, rounds: u32, lengths: &[usize]) {
    veth("xa", "xb");
    for name in ["xa", "xb"] {
        support::ip(&format!("link set {name} mtu {mtu}"));
    }
    let programs = [Redirect::attach("xa").unwrap(), Redirect::attach("xb").unwrap()];
    let config = |name| QueueConfig { packet_size: mtu + LINK_HEADER, ..config(name, BindMode::Copy) };
    let (mut a, mut b) = (XskQueue::open(&config("xa")).unwrap(), XskQueue::open(&config("xb")).unwrap());
    programs[0].set_socket(0, a.as_fd()).unwrap();
    programs[1].set_socket(0, b.as_fd()).unwrap();
    let bytes = |len: usize| {
        let mut bytes = vec![0; len.max(LEN)];
        write(&mut bytes, len as u32);
        bytes.iter_mut().enumerate().skip(LEN).for_each(|(at, byte)| *byte = at as u8);
        bytes.truncate(len);
        bytes
    };
    for round in 0..rounds {
        let mut expected = Vec::new();
        for &len in lengths {
            let mut frame = a.frame().unwrap();
            a.bytes_mut(&mut frame)[..len].copy_from_slice(&bytes(len));
            a.submit(frame, len).unwrap();
            expected.push(bytes(len));
        }
        a.flush().unwrap();
        let mut arrived = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while arrived.len() < expected.len() && Instant::now() < deadline {
            b.receive(usize::MAX, |packet| arrived.push(packet.to_vec()));
        }
        assert!(
            arrived == expected,
            "round {round}: {:?} {:?}",
            arrived.iter().map(Vec::len).collect::<Vec<_>>(),
            a.statistics()
        );
        settle(&mut a);
    }
    settle(&mut b);
}

#[test]
fn packets_of_several_chunks_arrive_complete() {
    // One chunk, one byte more, the same around two chunks and pages, and the largest that the MTU allows.
    in_namespace("packets_of_several_chunks", || {
        cross(9000, 40, &[60, 3840, 3841, 4096, 4097, 7680, 7681, 8192, 8193, 9014]);
    });
}

#[test]
fn packets_of_the_largest_mtu_arrive_complete() {
    in_namespace("packets_of_the_largest_mtu", || cross(65_535, 10, &[60, 65_535, 65_549]));
}

#[test]
fn a_flush_over_a_link_that_is_down_is_an_error() {
    in_namespace("a_flush_over_a_link_that_is_down", || {
        veth("xa", "xb");
        let mut a = XskQueue::open(&config("xa", BindMode::Copy)).unwrap();
        support::ip("link set xa down");
        let frame = a.frame().unwrap();
        a.submit(frame, LEN).unwrap();
        assert_eq!(a.flush().unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
        assert_eq!(a.pending(), 1);
    });
}

#[test]
fn an_overrun_receiver_drops_and_keeps_its_frames() {
    in_namespace("an_overrun_receiver", || {
        veth("xa", "xb");
        let programs = [Redirect::attach("xa").unwrap(), Redirect::attach("xb").unwrap()];
        let mut a = XskQueue::open(&config("xa", BindMode::Copy)).unwrap();
        let mut b = XskQueue::open(&config("xb", BindMode::Copy)).unwrap();
        programs[0].set_socket(0, a.as_fd()).unwrap();
        programs[1].set_socket(0, b.as_fd()).unwrap();
        let mut next = 0;
        for _ in 0..100 {
            let end = next + 64;
            send(&mut a, &mut next, end);
            settle(&mut a);
        }
        let mut arrived = 0;
        b.receive(usize::MAX, |_| arrived += 1);
        assert_eq!(arrived, 64, "B has 64 frames to receive with");
        settle(&mut b);
        assert_eq!(b.conservation().filled, 64);
    });
}

#[test]
fn a_failed_bind_is_named() {
    in_namespace("a_failed_bind", || {
        veth("xa", "xb");
        let open = |queue, mode| XskQueue::open(&QueueConfig { queue, ..config("xa", mode) });
        assert!(
            matches!(open(0, BindMode::ZeroCopy), Err(OpenError::NoZeroCopy { .. })),
            "a veth has no zero-copy"
        );
        assert!(matches!(open(99, BindMode::Auto), Err(OpenError::NoQueue { queue: 99, .. })));
        let socket = open(0, BindMode::Auto).unwrap();
        assert!(!socket.bound().zero_copy);
        assert!(socket.bound().fallback.as_ref().is_some_and(|why| why.contains("zero-copy")));
        assert!(matches!(open(0, BindMode::Copy), Err(OpenError::QueueInUse { queue: 0, .. })));
        drop(socket);
        let socket = open(0, BindMode::Copy).unwrap();
        assert_eq!(socket.bound().fallback, None, "copy was asked for");
    });
}

#[test]
fn without_the_capability_the_error_names_it() {
    in_namespace("without_the_capability", || {
        veth("xa", "xb");
        // SAFETY: takes numbers only; the raw call changes this thread alone, which ends with the test.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let error = XskQueue::open(&config("xa", BindMode::Auto)).map(|_| ()).unwrap_err();
        assert!(matches!(error, OpenError::NotPermitted { .. }), "{error}");
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    });
}
