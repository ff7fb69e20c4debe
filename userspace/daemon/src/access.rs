//! Who may talk to the daemon.

use std::os::fd::BorrowedFd;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use sumac_api::{Code, Failure};

use crate::session::Peer;

/// Who is at the other end of a connected socket, by the kernel's word.
pub(crate) fn peer(socket: &BorrowedFd<'_>) -> std::io::Result<Peer> {
    let credentials = getsockopt(socket, PeerCredentials)?;
    Ok(Peer { pid: credentials.pid(), uid: credentials.uid() })
}

/// Lets a user in, or says why not. `own` is the daemon's user.
pub(crate) fn admit(peer: Peer, own: u32, allowed: Option<&[u32]>) -> Result<(), Failure> {
    match allowed {
        // Without a list the socket's permissions have decided already.
        None => Ok(()),
        Some(_) if peer.uid == 0 || peer.uid == own => Ok(()),
        Some(allowed) if allowed.contains(&peer.uid) => Ok(()),
        Some(_) => Err(Failure::new(Code::Denied, format!("user {} may not use this daemon", peer.uid))
            .hint("add the uid to allow_uids in the daemon's configuration")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_decides_beyond_root_and_oneself() {
        let user = |uid| Peer { pid: 1, uid };
        let cases = [
            ("no list", user(7), None, true),
            ("listed", user(7), Some(&[6, 7][..]), true),
            ("not listed", user(8), Some(&[6, 7][..]), false),
            ("root", user(0), Some(&[][..]), true),
            ("oneself", user(5), Some(&[][..]), true),
        ];
        for (name, peer, allowed, admitted) in cases {
            assert_eq!(admit(peer, 5, allowed).is_ok(), admitted, "{name}");
        }
    }
}
