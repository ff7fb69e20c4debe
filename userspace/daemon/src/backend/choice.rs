//! The choice of `backend = "auto"`: AF_XDP wherever its sockets can be bound, else UDP.

use crate::datapath::IoReport;

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

    /// Returns why `auto` prefers AF_XDP to UDP sockets. Measured on veths with 4 workers, 5,000,000
    /// elements, MTU 1500, 64 slots and release builds, on 2 cores without other work: two runs of 8 sums.
    ///
    /// | workers, aggregator (`sumac-lab run --backend`) | shortest | medians | CPU of daemons and aggregator for 8 |
    /// | --- | --- | --- | --- |
    /// | AF_XDP copy, XDP program (`xdp`) | 0.114 s | 0.128, 0.123 s | 0.71, 0.74 s |
    /// | the same with the workers' XDP in generic mode | 0.135 s | 0.175, 0.216 s | 0.86, 0.77 s |
    /// | UDP, XDP program (`mixed`) | 0.147 s | 0.174, 0.192 s | 0.96, 0.85 s |
    /// | UDP, process (`udp`) | 0.141 s | 0.147, 0.196 s | 1.35, 1.34 s |
    ///
    /// Of 1,024 elements AF_XDP's sum takes 0.17 ms, UDP's 0.27 (`sumac-figures latency`, 2 workers). And an
    /// aggregator with several workers behind one port sends results to a group, which UDP sockets do not
    /// join.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            FramePath::ZeroCopy => "the driver passes AF_XDP's frames without a copy (zero-copy)",
            FramePath::Copy => {
                "AF_XDP has no zero-copy here (a socket's `fallback` says why); with copies it took 0.7 of \
                the time of UDP sockets, and less CPU (measured on veth, beside an aggregator's XDP program)"
            }
            FramePath::Generic => {
                "XDP runs in generic mode, after the driver; with copies it took the time of UDP sockets, \
                and less CPU (measured on veth, beside an aggregator's XDP program)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sumac_xsk::{Bound, Conservation};

    use super::*;
    use crate::datapath::SocketReport;

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
            ("a veth", vec![io("driver", &[false])], FramePath::Copy, "veth"),
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
