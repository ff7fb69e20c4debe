//! Which key seals which message.
//!
//! All keys come from the job's secret by HMAC-SHA256 with a label of their own, so that no message
//! can be taken for one of another kind, job, direction or session:
//!
//! | key | made from | seals |
//! | --- | --- | --- |
//! | join | secret, `"join" job` | the client's `JoinRequest` |
//! | session | secret, `"session" job cookie nonce` | all else: the server chose the cookie, the client the nonce |
//! | rack | the racks' secret, `"rack" name` | a rack's `RackHello` |
//! | rack session | the racks' secret, `"rack session" name cookie nonce` | all else between a rack and its root |
//! | mask | session key, `"token" job epoch` | hides the job's token from who listens to the control plane |
//!
//! The server shows that it knows the secret by its first reply, under the session key. Each answer is sealed for the
//! kind of its call: heartbeats and posts are counted apart, and the answer to one must not pass for that to another.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{Secret, rpc};

/// Bytes of a MAC and of a derived key.
pub const MAC_LEN: usize = 32;
/// Bytes of the client's nonce.
pub const NONCE_LEN: usize = 32;

const CONTEXT: &[u8] = b"sumac control v1";

/// Which way and for what a message is meant: a part of what its MAC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Client to server: join.
    Join,
    /// Client to server: heartbeat.
    Heartbeat,
    /// Client to server: something for the others.
    Post,
    /// Client to server: leave.
    Leave,
    /// Server to client: the answer to a join.
    Reply,
    /// Server to client: the answer to a heartbeat.
    HeartbeatReply,
    /// Server to client: what was posted has been taken.
    PostReply,
    /// Server to client: the place is free.
    LeaveReply,
    /// Rack to root: enter.
    EnterRack,
    /// Rack to root: how it is, and what came of orders.
    ServeRack,
    /// Rack to root: a worker's call.
    Relay,
    /// Root to rack: orders.
    Orders,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Purpose::Join => b"seal join",
            Purpose::Heartbeat => b"seal heartbeat",
            Purpose::Post => b"seal post",
            Purpose::Leave => b"seal leave",
            Purpose::Reply => b"seal reply",
            Purpose::HeartbeatReply => b"seal heartbeat reply",
            Purpose::PostReply => b"seal post reply",
            Purpose::LeaveReply => b"seal leave reply",
            Purpose::EnterRack => b"seal enter rack",
            Purpose::ServeRack => b"seal serve rack",
            Purpose::Relay => b"seal relay",
            Purpose::Orders => b"seal orders",
        }
    }
}

/// A MAC that is missing or not what the key makes of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is not authentic")]
pub struct NotAuthentic;

/// A key for sealing and opening messages.
#[derive(Clone)]
pub struct Key([u8; MAC_LEN]);

impl Key {
    /// What a client seals its `JoinRequest` with.
    pub fn join(secret: &Secret, job: &str) -> Key {
        Key(authenticate(secret.bytes(), &[b"join", job.as_bytes()]))
    }

    /// What everything after that is sealed with.
    pub fn session(secret: &Secret, job: &str, cookie: &[u8], nonce: &[u8]) -> Key {
        Key(authenticate(secret.bytes(), &[b"session", job.as_bytes(), cookie, nonce]))
    }

    /// What a rack seals its `RackHello` with.
    pub fn rack(secret: &Secret, name: &str) -> Key {
        Key(authenticate(secret.bytes(), &[b"rack", name.as_bytes()]))
    }

    /// What a rack and its root seal everything after that with.
    pub fn rack_session(secret: &Secret, name: &str, cookie: &[u8], nonce: &[u8]) -> Key {
        Key(authenticate(secret.bytes(), &[b"rack session", name.as_bytes(), cookie, nonce]))
    }

    /// Hides or shows a job's token. Every incarnation has a mask of its own: who knows one token learns no other.
    pub fn mask(&self, job: u32, epoch: u32, token: u64) -> u64 {
        let mask = authenticate(&self.0, &[b"token", &job.to_be_bytes(), &epoch.to_be_bytes()]);
        let [a, b, c, d, e, f, g, h, ..] = mask;
        token ^ u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// Puts a MAC on an encoded message.
    pub fn seal(&self, purpose: Purpose, body: Vec<u8>) -> rpc::Sealed {
        let mac = authenticate(&self.0, &[purpose.label(), &body]).to_vec();
        rpc::Sealed { body, mac }
    }

    /// The body, when its MAC is right. Takes the same time whatever is wrong with it.
    pub fn open<'a>(&self, purpose: Purpose, sealed: &'a rpc::Sealed) -> Result<&'a [u8], NotAuthentic> {
        verify(&self.0, &[purpose.label(), &sealed.body], &sealed.mac)?;
        Ok(&sealed.body)
    }
}

/// HMAC-SHA256 over `parts`, each with its length in front so that none can run into the next.
pub fn authenticate(key: &[u8], parts: &[&[u8]]) -> [u8; MAC_LEN] {
    keyed(key, parts).finalize().into_bytes().into()
}

/// Compares in constant time.
pub fn verify(key: &[u8], parts: &[&[u8]], mac: &[u8]) -> Result<(), NotAuthentic> {
    keyed(key, parts).verify_slice(mac).map_err(|_| NotAuthentic)
}

fn keyed(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of every length");
    for part in [CONTEXT].iter().chain(parts) {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_opens_only_with_its_key_and_purpose() {
        let (secret, other) =
            (Secret::new("a long enough secret").unwrap(), Secret::new("another secret....").unwrap());
        let key = Key::join(&secret, "train");
        let sealed = key.seal(Purpose::Join, b"body".to_vec());
        assert_eq!(key.open(Purpose::Join, &sealed), Ok(&b"body"[..]));
        assert_eq!(key.open(Purpose::Leave, &sealed), Err(NotAuthentic), "purpose");
        let answer = key.seal(Purpose::HeartbeatReply, b"body".to_vec());
        for other in [Purpose::Reply, Purpose::PostReply, Purpose::LeaveReply, Purpose::Heartbeat] {
            assert_eq!(key.open(other, &answer), Err(NotAuthentic), "the answer to another call");
        }
        assert_eq!(Key::join(&secret, "trai").open(Purpose::Join, &sealed), Err(NotAuthentic), "job");
        assert_eq!(Key::join(&other, "train").open(Purpose::Join, &sealed), Err(NotAuthentic), "secret");
        for at in 0..sealed.mac.len() {
            let mut bad = sealed.clone();
            bad.mac[at] ^= 1;
            assert_eq!(key.open(Purpose::Join, &bad), Err(NotAuthentic), "byte {at} of the MAC");
            bad.mac.truncate(at);
            assert_eq!(key.open(Purpose::Join, &bad), Err(NotAuthentic), "MAC cut at {at}");
        }
        let changed = rpc::Sealed { body: b"bodz".to_vec(), ..sealed };
        assert_eq!(key.open(Purpose::Join, &changed), Err(NotAuthentic), "body");
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(authenticate(b"k", &[b"ab", b"c"]), authenticate(b"k", &[b"a", b"bc"]));
    }

    #[test]
    fn the_mask_is_its_own_inverse_and_differs_by_session() {
        let secret = Secret::new("a long enough secret").unwrap();
        let (one, two) = (Key::session(&secret, "j", b"c", b"1"), Key::session(&secret, "j", b"c", b"2"));
        assert_eq!(one.mask(1, 2, one.mask(1, 2, 0xfeed)), 0xfeed);
        assert_ne!(one.mask(1, 2, 0xfeed), two.mask(1, 2, 0xfeed));
        assert_ne!(one.mask(1, 2, 0xfeed), one.mask(1, 3, 0xfeed), "another incarnation");
        assert_ne!(one.mask(1, 2, 0xfeed), 0xfeed);
    }
}
