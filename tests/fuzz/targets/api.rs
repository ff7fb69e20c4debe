//! The local API: messages, the descriptors with them, and registered memory.

use std::io::{IoSlice, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use rustix::fs::{MemfdFlags, SealFlags};
use sumac_api::{Channel, FrameError, Inbound, MAX_FDS, MAX_MESSAGE, Outbound, Request};
use sumac_fuzz::{Fields, edited};
use sumac_memory::SharedRegion;

use crate::fuzz;

const EXAMPLES: &[&str] = &[
    r#"{"id":1,"cmd":"hello","version":2,"client":"x"}"#,
    r#"{"id":2,"cmd":"open","job":"a","rank":0,"world":2,"mode":"dynamic","window":64,"scale":1e8,"timeout_s":2.5}"#,
    r#"{"id":3,"cmd":"register","size":4096}"#,
    r#"{"id":4,"cmd":"allreduce","job":1,"region":1,"dtype":"float32","offset":0,"count":16,"reduction":"sum","name":"l","priority":4,"loss_bound":0.5}"#,
    r#"{"id":5,"cmd":"broadcast","job":1,"region":1,"dtype":"int32","offset":8,"count":3,"root":1}"#,
    r#"{"id":6,"cmd":"wait","op":7,"timeout_ms":100}"#,
    r#"{"id":7,"ok":{"region":3}}"#,
    r#"{"id":8,"error":{"code":"job_failed","message":"rank 2 left","ranks":[2]}}"#,
    r#"{"event":"completed","op":1,"job":2,"duration_ns":3,"missed":[[0,5]]}"#,
    r#"{"event":"completed","op":1,"job":2,"duration_ns":3,"loss":{"elements":9,"budget":4,"by_worker":[0,2],"own":[[3,5]]}}"#,
    r#"{"event":"waiting","job":2,"message":"operation 3 waits for ranks [1]","ranks":[1]}"#,
];

/// A stale example would leave its target with messages that are refused at once.
#[test]
fn examples_are_messages() {
    for example in EXAMPLES {
        let bytes = example.as_bytes();
        assert!(Request::parse(bytes).is_ok() || Outbound::parse(bytes).is_ok(), "{example}");
    }
}

#[test]
fn messages() {
    fuzz!(|input: &[u8]| {
        let bytes = edited(EXAMPLES, input);
        if let Ok(request) = Request::parse(&bytes)
            && let Ok(again) = request.encode()
        {
            assert_eq!(Request::parse(&again), Ok(request));
        }
        if let Ok(message) = Outbound::parse(&bytes)
            && let Ok(again) = message.encode()
        {
            assert_eq!(Outbound::parse(&again).ok(), Some(message));
        }
    });
}

#[test]
fn messages_with_descriptors() {
    fuzz!(|input: &[u8]| {
        let (ours, theirs) = Channel::pair().unwrap();
        let (read, write) = std::io::pipe().unwrap();
        let count = input.first().map_or(0, |count| usize::from(count % 4));
        let fds: Vec<RawFd> = vec![write.as_raw_fd(); count];
        let text = edited(EXAMPLES, input.get(1..).unwrap_or_default());
        let control = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &[][..] } else { &control[..] };
        let socket = theirs.as_fd().as_raw_fd();
        if sendmsg::<()>(socket, &[IoSlice::new(&text)], control, MsgFlags::empty(), None).is_err() {
            return;
        }
        drop(write);
        let mut room = vec![0; MAX_MESSAGE];
        match ours.try_receive(&mut room) {
            Ok(Inbound::Message(message)) => {
                assert_eq!((message.bytes, message.fds.len()), (&text[..], count));
                assert!(count <= MAX_FDS);
            }
            Ok(Inbound::End) => assert!(text.is_empty()),
            Err(FrameError::TooManyFds) => assert!(count > MAX_FDS),
            Err(FrameError::TooLarge { length }) => assert!(length == text.len() && length > MAX_MESSAGE),
            Err(error) => panic!("{error}"),
        }
        // All received descriptors are closed, so the pipe has ended.
        let mut end = read;
        rustix::io::ioctl_fionbio(&end, true).unwrap();
        assert_eq!(end.read(&mut [0]).unwrap(), 0, "a descriptor is left");
    });
}

#[test]
fn registered_descriptors() {
    fuzz!(|input: &[u8]| {
        let mut numbers = Fields(input);
        let (len, size) = (u64::from(numbers.below(20_000)) % (1 << 20), numbers.below(20_000) as usize);
        let (kind, seals) = (numbers.word() % 4, SealFlags::from_bits_truncate(numbers.word() % 16));
        let fd: OwnedFd = match kind {
            0 => std::fs::File::open("/proc/self/exe").unwrap().into(),
            1 => std::io::pipe().unwrap().0.into(),
            _ => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let fd = rustix::fs::memfd_create("fuzz", flags).unwrap();
                rustix::fs::ftruncate(&fd, len).unwrap();
                rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
                fd
            }
        };
        let Ok(region) = SharedRegion::from_fd(fd.as_fd(), size) else { return };
        assert!(kind > 1 && seals.contains(SealFlags::SHRINK) && size as u64 <= len && region.len() == size);
        let (first, second) = (numbers.below(20_000) as usize, numbers.below(20_000) as usize);
        if let Ok(mut lease) = region.lease(first..second, first..second) {
            assert!(first <= second && second <= size);
            let (offset, count) = (numbers.below(20_000) as usize, numbers.below(20_000) as usize);
            if let Some(output) = lease.output(offset, count) {
                output.fill(1);
                assert_eq!(lease.input(offset, count).unwrap(), vec![1; count]);
            }
        }
    });
}
