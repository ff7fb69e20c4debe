//! The sockets of a shard: its own, and one for each further path of results.

use std::{
    io,
    net::{IpAddr, UdpSocket},
    time::{Duration, Instant},
};

use sumac_udp::DatagramSocket;

/// The time after which a socket that the kernel has refused is tried again.
const RETRY: Duration = Duration::from_secs(10);

pub struct Sockets {
    /// The shard's own, which receives, and those of further paths, which only send. These are made when a
    /// result is to leave by them.
    all: Vec<DatagramSocket>,
    /// Makes a socket at another port of an address.
    bind: fn(IpAddr) -> io::Result<DatagramSocket>,
    /// The time at which the kernel last refused one, as where the process has too many files open.
    refused: Option<Instant>,
}

impl Sockets {
    pub fn new(own: DatagramSocket) -> Sockets {
        Sockets { all: vec![own], bind: bind_another, refused: None }
    }

    /// The socket that receives.
    pub fn own(&mut self) -> &mut DatagramSocket {
        &mut self.all[0]
    }

    pub fn iter(&self) -> impl Iterator<Item = &DatagramSocket> {
        self.all.iter()
    }

    /// The socket of a path, made if need be. While the kernel refuses it, it is the shard's own.
    pub fn of(&mut self, path: usize, now: Instant) -> &mut DatagramSocket {
        while self.all.len() <= path && self.refused.is_none_or(|at| now.duration_since(at) >= RETRY) {
            match self.all[0].get().local_addr().and_then(|local| (self.bind)(local.ip())) {
                Ok(socket) => {
                    self.all.push(socket);
                    if self.refused.take().is_some() {
                        tracing::info!(sockets = self.all.len(), "results leave by more paths again");
                    }
                }
                Err(error) => {
                    if self.refused.replace(now).is_none() {
                        tracing::warn!(%error, sockets = self.all.len(),
                            "results leave by fewer paths, until the kernel allows another socket; is the \
                            limit of open files too low?");
                    }
                }
            }
        }
        let path = if path < self.all.len() { path } else { 0 };
        &mut self.all[path]
    }
}

fn bind_another(ip: IpAddr) -> io::Result<DatagramSocket> {
    Ok(DatagramSocket::sending(UdpSocket::bind((ip, 0))?)?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nix::errno::Errno;

    use super::*;

    std::thread_local! {
        /// The sockets that the kernel still allows.
        static ALLOWED: Cell<usize> = const { Cell::new(2) };
        static ATTEMPTS: Cell<usize> = const { Cell::new(0) };
    }

    fn limited(ip: IpAddr) -> io::Result<DatagramSocket> {
        ATTEMPTS.set(ATTEMPTS.get() + 1);
        let left = ALLOWED.get().checked_sub(1).ok_or(Errno::EMFILE)?;
        ALLOWED.set(left);
        bind_another(ip)
    }

    #[test]
    fn a_socket_that_was_refused_is_tried_again() {
        let own = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sockets = Sockets::new(DatagramSocket::new(own).unwrap());
        sockets.bind = limited;
        let start = Instant::now();
        let mut ports = |after: Duration| {
            let of = |path| sockets.of(path, start + after).get().local_addr().unwrap().port();
            (0..16).map(of).collect::<Vec<_>>()
        };
        let first = ports(Duration::ZERO);
        assert!(first[3..].iter().all(|port| *port == first[0]), "two more than the own: {first:?}");
        assert!(first[1] != first[0] && first[2] != first[0] && first[1] != first[2], "{first:?}");
        // Not for each result: that would be a system call for each.
        ALLOWED.set(16);
        assert_eq!((ports(RETRY / 2), ATTEMPTS.get()), (first.clone(), 3));
        let mut again = ports(RETRY);
        assert_eq!(again[..3], first[..3]);
        again.sort_unstable();
        again.dedup();
        assert_eq!((again.len(), ATTEMPTS.get()), (16, 16), "{again:?}");
    }
}
