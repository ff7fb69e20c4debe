//! What can go wrong when a socket is opened, and what to do about it.

use std::io;

/// The step of opening a socket that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `socket(2)`.
    Create,
    /// Mapping the frames' memory.
    Allocate,
    /// `XDP_UMEM_REG`.
    Register,
    /// Setting the rings' sizes.
    SizeRings,
    /// Mapping the rings.
    MapRings,
    /// `bind(2)`.
    Bind,
    /// Asking what was bound (`XDP_OPTIONS`).
    Ask,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Create => "create the socket",
            Step::Allocate => "allocate the frames",
            Step::Register => "register the frames with the kernel",
            Step::SizeRings => "size the rings",
            Step::MapRings => "map the rings",
            Step::Bind => "bind to the queue",
            Step::Ask => "read what was bound",
        }
    }
}

/// Why a socket could not be opened. Each message ends with what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration contradicts itself.
    #[error("cannot open an AF_XDP socket with {what}: {must}")]
    Config {
        /// What was asked for.
        what: String,
        /// What it has to be.
        must: &'static str,
    },
    /// No such interface here.
    #[error("no interface {interface} in this network namespace ({source}); see `ip link`")]
    NoInterface {
        /// Its name.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel has no AF_XDP.
    #[error("this kernel has no AF_XDP sockets; it needs CONFIG_XDP_SOCKETS")]
    Unsupported,
    /// A capability is missing.
    #[error("may not {}; AF_XDP needs CAP_NET_RAW (as root, or by AmbientCapabilities= in the systemd unit)", step.name())]
    NotPermitted {
        /// What was refused.
        step: Step,
    },
    /// The frames may not be locked in memory.
    #[error(
        "the kernel would not lock {bytes} bytes of frames; raise the memlock limit (`ulimit -l`, \
         LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or use fewer frames"
    )]
    MemLock {
        /// The size of the UMEM.
        bytes: u64,
    },
    /// Another socket is on the queue.
    #[error(
        "queue {queue} of {interface} has an AF_XDP socket already; stop its owner (see `ss --xdp -e`) or choose \
         another queue"
    )]
    QueueInUse {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Zero-copy was demanded and the driver cannot.
    #[error(
        "the driver of {interface} cannot do zero-copy on queue {queue} ({source}); use mode auto or copy, or \
         a NIC whose driver supports it"
    )]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The queue does not exist.
    #[error(
        "{interface} has no queue {queue} ({source}); see `ethtool -l {interface}` and /sys/class/net/{interface}/queues"
    )]
    NoQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The interface is down.
    #[error("{interface} is down; `ip link set {interface} up` first")]
    Down {
        /// The interface.
        interface: String,
    },
    /// The kernel described rings that do not lie where it mapped them.
    #[error(
        "the kernel laid out the {ring} ring in a way that this build does not know; please report the kernel's version"
    )]
    Layout {
        /// Which ring.
        ring: &'static str,
    },
    /// Anything else.
    #[error("cannot {} {queue} of {interface}: {source}", step.name())]
    System {
        /// What was being done.
        step: Step,
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What an attempt was about, to name it in its error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub interface: &'a str,
    pub queue: u32,
    pub umem_bytes: u64,
    pub zero_copy: bool,
}

impl Attempt<'_> {
    /// Names what the kernel's error number means at this step.
    pub(crate) fn error(&self, step: Step, source: io::Error) -> OpenError {
        let interface = self.interface.to_owned();
        let queue = self.queue;
        match (step, source.raw_os_error()) {
            (_, Some(libc::EPERM | libc::EACCES)) => OpenError::NotPermitted { step },
            (Step::Create, Some(libc::EAFNOSUPPORT)) => OpenError::Unsupported,
            (Step::Allocate | Step::Register, Some(libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN)) => {
                OpenError::MemLock { bytes: self.umem_bytes }
            }
            (Step::Bind, Some(libc::EBUSY)) => OpenError::QueueInUse { interface, queue },
            (Step::Bind, Some(libc::ENETDOWN)) => OpenError::Down { interface },
            (Step::Bind, Some(libc::EOPNOTSUPP)) if self.zero_copy => {
                OpenError::NoZeroCopy { interface, queue, source }
            }
            (Step::Bind, Some(libc::EINVAL)) => OpenError::NoQueue { interface, queue, source },
            (Step::Bind, Some(libc::ENODEV)) => OpenError::NoInterface { interface, source },
            _ => OpenError::System { step, interface, queue, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_says_what_to_do() {
        let attempt = Attempt { interface: "eth9", queue: 3, umem_bytes: 4096, zero_copy: true };
        let cases = [
            (Step::Create, libc::EPERM, "CAP_NET_RAW"),
            (Step::Create, libc::EAFNOSUPPORT, "CONFIG_XDP_SOCKETS"),
            (Step::Register, libc::ENOBUFS, "memlock"),
            (Step::Allocate, libc::ENOMEM, "fewer frames"),
            (Step::Bind, libc::EBUSY, "queue 3 of eth9"),
            (Step::Bind, libc::EOPNOTSUPP, "mode auto or copy"),
            (Step::Bind, libc::EINVAL, "ethtool -l eth9"),
            (Step::Bind, libc::ENETDOWN, "ip link set eth9 up"),
            (Step::Bind, libc::ENODEV, "ip link"),
            (Step::SizeRings, libc::EINVAL, "size the rings"),
        ];
        for (step, errno, expected) in cases {
            let error = attempt.error(step, io::Error::from_raw_os_error(errno)).to_string();
            assert!(error.contains(expected), "{step:?} {errno}: {error}");
        }
    }
}
