//! Errors of opening a queue's socket, with their remedies.

use std::io;

use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creating the socket and registering its frames (`XDP_UMEM_REG`).
    Umem,
    /// Sizing and mapping the rings, and `bind(2)`.
    Bind,
    /// Reading what was bound (`XDP_OPTIONS`).
    Options,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Umem => "register the frames with the kernel",
            Step::Bind => "bind to the queue",
            Step::Options => "read what was bound",
        }
    }
}

/// An error of opening a socket. Each message ends with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open an AF_XDP socket with {value}: {required}")]
    Config { value: String, required: &'static str },
    #[error("no interface {interface} in this network namespace ({source}); see `ip link`")]
    NoInterface { interface: String, source: io::Error },
    #[error("this kernel has no AF_XDP sockets; it needs CONFIG_XDP_SOCKETS")]
    Unsupported,
    #[error("may not {}; AF_XDP needs CAP_NET_RAW (as root, or by AmbientCapabilities= in the systemd \
    unit)", step.name())]
    NotPermitted { step: Step },
    #[error(
        "the kernel would not lock {bytes} bytes of frames; raise the memlock limit (`ulimit -l`, \
         LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or use fewer frames"
    )]
    MemLock { bytes: u64 },
    #[error(
        "queue {queue} of {interface} has an AF_XDP socket already; stop its owner (see `ss --xdp -e`) or \
        choose another queue"
    )]
    QueueInUse { interface: String, queue: u32 },
    #[error(
        "the driver of {interface} cannot do zero-copy on queue {queue} ({source}); use mode auto or copy, \
        or a NIC whose driver supports it"
    )]
    NoZeroCopy { interface: String, queue: u32, source: io::Error },
    #[error(
        "the driver of {interface} refused zero-copy on queue {queue} ({source}), which it has: it may lack \
        DMA mappings (an emulated virtio-net without `iommu_platform`), or exclude the MTU or an offload; \
        see `dmesg`, or use mode auto or copy"
    )]
    ZeroCopyRefused { interface: String, queue: u32, source: io::Error },
    #[error(
        "{interface} has no queue {queue} ({source}); see `ethtool -l {interface}` and \
        /sys/class/net/{interface}/queues"
    )]
    NoQueue { interface: String, queue: u32, source: io::Error },
    #[error(
        "the kernel does not pass packets of {packet} bytes to AF_XDP sockets ({source}): those above 3,840 \
        bytes need Linux 6.6; lower the MTU of {interface} to 3,822, or use backend udp"
    )]
    NoMultiBuffer { interface: String, packet: u32, source: io::Error },
    #[error("{interface} is down; `ip link set {interface} up` first")]
    Down { interface: String },
    #[error("cannot {} {queue} of {interface}: {source}", step.name())]
    System { step: Step, interface: String, queue: u32, source: io::Error },
}

impl OpenError {
    /// Returns the error of a refused zero-copy bind. EINVAL may be of a driver, or of a queue that is not
    /// there: a bind in copy mode, which asks nothing of the driver, shows which.
    pub(crate) fn of_zero_copy(self, has_queue: impl FnOnce() -> bool) -> OpenError {
        match self {
            OpenError::NoQueue { interface, queue, source } if has_queue() => {
                OpenError::ZeroCopyRefused { interface, queue, source }
            }
            other => other,
        }
    }

    /// Returns the error of a bind for packets of so many bytes, which take several chunks. EINVAL may be of
    /// a kernel without such packets: a bind for small ones shows whether the queue is there.
    pub(crate) fn of_multi_buffer(self, packet: u32, has_queue: impl FnOnce() -> bool) -> OpenError {
        match self {
            OpenError::NoQueue { interface, source, .. } if has_queue() => {
                OpenError::NoMultiBuffer { interface, packet, source }
            }
            other => other,
        }
    }

    /// Returns the reason to try copy mode after a failed zero-copy bind; `None` where copy mode fails, too.
    /// Some drivers return EINVAL for "no zero-copy": only a copy bind shows whether the queue exists.
    pub(crate) fn copy_reason(&self) -> Option<String> {
        match self {
            OpenError::NoZeroCopy { source, .. } | OpenError::NoQueue { source, .. } => {
                Some(format!("the driver refused zero-copy: {source}"))
            }
            // Its frames are smaller.
            OpenError::MemLock { .. } => Some(format!("zero-copy failed: {self}")),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub interface: &'a str,
    pub queue: u32,
    pub umem_bytes: u64,
    pub zero_copy: bool,
}

impl Attempt<'_> {
    pub(crate) fn error(&self, step: Step, source: io::Error) -> OpenError {
        let interface = self.interface.to_owned();
        let queue = self.queue;
        match (step, Errno::from_io_error(&source)) {
            (_, Some(Errno::PERM | Errno::ACCESS)) => OpenError::NotPermitted { step },
            (Step::Umem, Some(Errno::AFNOSUPPORT)) => OpenError::Unsupported,
            (Step::Umem, Some(Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN)) => {
                OpenError::MemLock { bytes: self.umem_bytes }
            }
            (Step::Bind, Some(Errno::BUSY)) => OpenError::QueueInUse { interface, queue },
            (Step::Bind, Some(Errno::NETDOWN)) => OpenError::Down { interface },
            (Step::Bind, Some(Errno::OPNOTSUPP)) if self.zero_copy => {
                OpenError::NoZeroCopy { interface, queue, source }
            }
            (Step::Bind, Some(Errno::INVAL)) => OpenError::NoQueue { interface, queue, source },
            (Step::Bind, Some(Errno::NODEV)) => OpenError::NoInterface { interface, source },
            _ => OpenError::System { step, interface, queue, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_refuses_zero_copy_is_no_missing_queue() {
        let attempt = Attempt { interface: "eth9", queue: 3, umem_bytes: 4096, zero_copy: true };
        let refused = |errno: Errno, has_queue| {
            attempt.error(Step::Bind, errno.into()).of_zero_copy(|| has_queue).to_string()
        };
        let cases = [
            (Errno::INVAL, true, "refused zero-copy on queue 3"),
            (Errno::INVAL, false, "has no queue 3"),
            (Errno::OPNOTSUPP, true, "cannot do zero-copy"),
            (Errno::BUSY, true, "has an AF_XDP socket already"),
        ];
        for (errno, has_queue, expected) in cases {
            let error = refused(errno, has_queue);
            assert!(error.contains(expected), "{errno}, {has_queue}: {error}");
        }
    }

    #[test]
    fn a_kernel_without_multi_buffer_is_no_missing_queue() {
        let attempt = Attempt { interface: "eth9", queue: 3, umem_bytes: 4096, zero_copy: false };
        let invalid = || attempt.error(Step::Bind, Errno::INVAL.into());
        let error = invalid().of_multi_buffer(9018, || true).to_string();
        assert!(error.contains("packets of 9018 bytes") && error.contains("Linux 6.6"), "{error}");
        assert!(invalid().of_multi_buffer(9018, || false).to_string().contains("has no queue 3"));
        let busy = attempt.error(Step::Bind, Errno::BUSY.into()).of_multi_buffer(9018, || true);
        assert!(matches!(busy, OpenError::QueueInUse { .. }), "{busy}");
    }

    #[test]
    fn copy_mode_is_tried_where_it_may_succeed() {
        let attempt = Attempt { interface: "eth9", queue: 3, umem_bytes: 8 << 20, zero_copy: true };
        let cases = [
            (Step::Bind, Errno::OPNOTSUPP, Some("refused zero-copy")),
            (Step::Bind, Errno::INVAL, Some("refused zero-copy")),
            (Step::Umem, Errno::NOBUFS, Some("zero-copy failed: the kernel would not lock 8388608 bytes")),
            (Step::Umem, Errno::PERM, None),
            (Step::Bind, Errno::BUSY, None),
            (Step::Bind, Errno::NETDOWN, None),
        ];
        for (step, errno, expected) in cases {
            let reason = attempt.error(step, errno.into()).copy_reason();
            let is_expected = match (&reason, expected) {
                (Some(reason), Some(expected)) => reason.contains(expected),
                (reason, expected) => reason.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{step:?} {errno}: {reason:?}");
        }
    }

    #[test]
    fn every_error_has_a_remedy() {
        let attempt = Attempt { interface: "eth9", queue: 3, umem_bytes: 4096, zero_copy: true };
        let cases = [
            (Step::Umem, Errno::PERM, "CAP_NET_RAW"),
            (Step::Umem, Errno::AFNOSUPPORT, "CONFIG_XDP_SOCKETS"),
            (Step::Umem, Errno::NOBUFS, "memlock"),
            (Step::Umem, Errno::NOMEM, "fewer frames"),
            (Step::Bind, Errno::BUSY, "queue 3 of eth9"),
            (Step::Bind, Errno::OPNOTSUPP, "mode auto or copy"),
            (Step::Bind, Errno::INVAL, "ethtool -l eth9"),
            (Step::Bind, Errno::NETDOWN, "ip link set eth9 up"),
            (Step::Bind, Errno::NODEV, "ip link"),
            (Step::Options, Errno::INVAL, "read what was bound"),
        ];
        for (step, errno, expected) in cases {
            let error = attempt.error(step, errno.into()).to_string();
            assert!(error.contains(expected), "{step:?} {errno}: {error}");
        }
    }
}
