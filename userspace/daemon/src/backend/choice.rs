//! The choice of `backend = "auto"`: AF_XDP wherever its sockets can be bound, else UDP. Jobs then measure which
//! is faster.

use sumac_datapath::IoReport;

/// The way of frames between the interface and AF_XDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FramePath {
    /// The driver reads and writes the frames of all sockets in place.
    ZeroCopy,
    /// XDP runs in the driver, and the kernel copies the frames of a socket.
    Copy,
    /// XDP runs after the driver, on socket buffers.
    Generic,
}

impl FramePath {
    pub(crate) fn of<'a>(ios: impl Iterator<Item = &'a IoReport>) -> FramePath {
        let mut path = FramePath::ZeroCopy;
        for io in ios {
            if io.xdp_mode.as_deref() == Some("generic") {
                return FramePath::Generic;
            }
            if !io.sockets.iter().all(|socket| socket.bound.zero_copy) {
                path = FramePath::Copy;
            }
        }
        path
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            FramePath::ZeroCopy => "zero_copy",
            FramePath::Copy => "copy",
            FramePath::Generic => "generic",
        }
    }

    /// Returns why `auto` prefers AF_XDP to UDP sockets.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            FramePath::ZeroCopy => "the driver passes AF_XDP's frames without a copy (zero-copy)",
            FramePath::Copy => "AF_XDP has no zero-copy here (a socket's `fallback` says why)",
            FramePath::Generic => "XDP runs in generic mode, after the driver",
        }
    }
}

#[cfg(test)]
mod tests {
    use sumac_xsk::{Bound, Conservation};

    use super::*;
    use sumac_datapath::SocketReport;

    fn io(mode: &str, zero_copy: &[bool]) -> IoReport {
        let socket = |zero_copy: &bool| SocketReport {
            queue: 0,
            bound: Bound { zero_copy: *zero_copy, fallback: None },
            received: 0,
            kernel: None,
            frames: Conservation::default(),
        };
        let sockets = zero_copy.iter().map(socket).collect();
        IoReport { backend: "xdp", xdp_mode: Some(mode.into()), sockets, ..IoReport::default() }
    }

    #[test]
    fn the_path_is_that_of_the_slowest_socket() {
        let cases = [
            (
                "zero-copy on all queues",
                vec![io("driver", &[true]), io("driver", &[true])],
                FramePath::ZeroCopy,
                "zero-copy",
            ),
            (
                "one queue copies",
                vec![io("driver", &[true]), io("driver", &[false])],
                FramePath::Copy,
                "no zero-copy",
            ),
            ("a veth", vec![io("driver", &[false])], FramePath::Copy, "no zero-copy"),
            ("offloaded to the NIC", vec![io("hardware", &[true])], FramePath::ZeroCopy, "without a copy"),
            ("generic", vec![io("generic", &[false])], FramePath::Generic, "generic mode"),
            (
                "one queue generic",
                vec![io("driver", &[true]), io("generic", &[false])],
                FramePath::Generic,
                "generic mode",
            ),
        ];
        for (name, ios, expected, reason) in cases {
            let path = FramePath::of(ios.iter());
            assert_eq!(path, expected, "{name}");
            assert!(path.reason().contains(reason), "{name}: {}", path.reason());
        }
    }
}
