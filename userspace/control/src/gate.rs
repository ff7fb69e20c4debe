//! The server's door: only authentic and fresh messages get past it, and only those are remembered.
//!
//! A cookie is 16 random bytes, the time of issue and a MAC over both with a key that lives as long as
//! the process. The server keeps nothing for a cookie that it gave away; it remembers those that an
//! authentic join has used, until they are too old to be used again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use prost::Message;
use thiserror::Error;

use crate::{
    Secret,
    coordinator::{MemberId, RACK_NAME_LEN, RackId, Time},
    rpc,
    seal::{self, Key, NONCE_LEN, Purpose},
};

/// How long a cookie may be used.
const COOKIE_AGE: Duration = Duration::from_secs(10);
const RANDOM_LEN: usize = 16;
const ISSUED_LEN: usize = 8;
const COOKIE_LEN: usize = RANDOM_LEN + ISSUED_LEN + seal::MAC_LEN;
/// Used cookies that are remembered at once: joins within [`COOKIE_AGE`].
const MOST_USED: usize = 16_384;
/// Heartbeats of one session that may wait for news at once: the last, and one whose caller has gone.
const MOST_WAITING: usize = 2;
/// Longest name of a job, in bytes.
pub const JOB_NAME_LEN: usize = 64;

/// Why a message was turned away. Nothing was changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Rejected {
    /// It cannot be read.
    #[error("malformed message; are both sides of the same version?")]
    Malformed,
    /// Its MAC is not what the job's secret makes of it, or the job has no secret here.
    #[error("the shared secret does not match this job's at the aggregator; compare the secret files")]
    WrongSecret,
    /// The MAC of a rack's message is not what the racks' secret makes of it.
    #[error("the racks' secret does not match the root's; compare the files given with --rack-secret-file")]
    WrongRackSecret,
    /// There is no secret for racks.
    #[error("this aggregator takes no racks; start it with --rack-secret-file")]
    NoRacks,
    /// The cookie is too old, of another server process, or made up.
    #[error("the join came too late after its challenge; join again")]
    StaleCookie,
    /// This very message, or one like it, came before.
    #[error("replayed message")]
    Replayed,
    /// The session ended, or was with an earlier server process.
    #[error("unknown session; the aggregator's control plane may have been restarted: join again")]
    UnknownSession,
    /// Too many joins in a short time.
    #[error("too many joins within 10 seconds; try again later")]
    Busy,
}

/// Which secret belongs to which job.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// For jobs that have none of their own.
    pub default: Option<Secret>,
    /// By job name.
    pub jobs: HashMap<String, Secret>,
    /// For the aggregators of racks; without it there are none.
    pub racks: Option<Secret>,
}

impl Secrets {
    fn of(&self, job: &str) -> Option<&Secret> {
        self.jobs.get(job).or(self.default.as_ref())
    }
}

struct Session {
    key: Key,
    last_counter: u64,
    /// Posts go beside heartbeats, so they are counted by themselves.
    last_post: u64,
    /// One for each heartbeat that waits, and one here.
    waiting: Arc<()>,
}

/// Leave for a heartbeat to wait, until it is dropped.
#[derive(Debug)]
pub struct Wait(#[expect(dead_code, reason = "it is counted")] Arc<()>);

struct RackSession {
    key: Key,
    last_counter: u64,
}

/// Cookies, sessions, and what of them has been used.
pub struct Gate {
    secrets: Secrets,
    boot_key: [u8; 32],
    used: HashMap<Vec<u8>, Time>,
    sessions: HashMap<MemberId, Session>,
    racks: HashMap<RackId, RackSession>,
}

impl Gate {
    /// `boot_key` must be random and never leave the process.
    pub fn new(secrets: Secrets, boot_key: [u8; 32]) -> Gate {
        Gate { secrets, boot_key, used: HashMap::new(), sessions: HashMap::new(), racks: HashMap::new() }
    }

    /// A cookie from fresh random bytes.
    pub fn cookie(&self, now: Time, random: [u8; RANDOM_LEN]) -> Vec<u8> {
        let mut cookie = random.to_vec();
        cookie.extend((now.as_millis() as u64).to_be_bytes());
        let mac = seal::authenticate(&self.boot_key, &[b"cookie", &cookie]);
        cookie.extend(mac);
        cookie
    }

    /// Opens a join. Its cookie is used up, whatever becomes of it.
    pub fn join(&mut self, now: Time, sealed: &rpc::Sealed) -> Result<(rpc::JoinRequest, Key), Rejected> {
        // The job's name is needed to find the key: read first, believe nothing before the MAC fits.
        let request = rpc::JoinRequest::decode(&sealed.body[..]).map_err(|_| Rejected::Malformed)?;
        if request.job.len() > JOB_NAME_LEN || request.nonce.len() != NONCE_LEN {
            return Err(Rejected::Malformed);
        }
        let secret = self.secrets.of(&request.job).ok_or(Rejected::WrongSecret)?;
        Key::join(secret, &request.job).open(Purpose::Join, sealed).map_err(|_| Rejected::WrongSecret)?;
        let key = Key::session(secret, &request.job, &request.cookie, &request.nonce);
        self.use_cookie(now, &request.cookie)?;
        Ok((request, key))
    }

    fn use_cookie(&mut self, now: Time, cookie: &[u8]) -> Result<(), Rejected> {
        if cookie.len() != COOKIE_LEN {
            return Err(Rejected::StaleCookie);
        }
        let (facts, mac) = cookie.split_at(RANDOM_LEN + ISSUED_LEN);
        seal::verify(&self.boot_key, &[b"cookie", facts], mac).map_err(|_| Rejected::StaleCookie)?;
        let issued = facts.last_chunk().map_or(0, |issued| u64::from_be_bytes(*issued));
        if now.saturating_sub(Duration::from_millis(issued)) > COOKIE_AGE {
            return Err(Rejected::StaleCookie);
        }
        self.used.retain(|_, used| now.saturating_sub(*used) <= COOKIE_AGE);
        if self.used.contains_key(cookie) {
            return Err(Rejected::Replayed);
        }
        if self.used.len() >= MOST_USED {
            return Err(Rejected::Busy);
        }
        self.used.insert(cookie.to_vec(), now);
        Ok(())
    }

    /// Remembers an admitted member's key.
    pub fn open_session(&mut self, member: MemberId, key: Key) {
        let waiting = Arc::default();
        self.sessions.insert(member, Session { key, last_counter: 0, last_post: 0, waiting });
    }

    /// Leave for a heartbeat of a session to wait for news. None when as many wait as any client needs: who sends more
    /// is answered at once, so that no member has the server keep, and wake, any number of them.
    pub fn wait(&self, member: MemberId) -> Option<Wait> {
        let waiting = &self.sessions.get(&member)?.waiting;
        (Arc::strong_count(waiting) <= MOST_WAITING).then(|| Wait(waiting.clone()))
    }

    /// Opens a message of a session.
    pub fn session(
        &mut self,
        purpose: Purpose,
        sealed: &rpc::Sealed,
    ) -> Result<(MemberId, rpc::SessionRequest, Key), Rejected> {
        let request = rpc::SessionRequest::decode(&sealed.body[..]).map_err(|_| Rejected::Malformed)?;
        let member = MemberId(request.session);
        let session = self.sessions.get_mut(&member).ok_or(Rejected::UnknownSession)?;
        session.key.open(purpose, sealed).map_err(|_| Rejected::WrongSecret)?;
        let last = match purpose {
            Purpose::Post => &mut session.last_post,
            _ => &mut session.last_counter,
        };
        if request.counter <= *last {
            return Err(Rejected::Replayed);
        }
        *last = request.counter;
        Ok((member, request, session.key.clone()))
    }

    /// Opens a rack's entry. Its cookie is used up, whatever becomes of it.
    pub fn enter_rack(&mut self, now: Time, sealed: &rpc::Sealed) -> Result<(rpc::RackHello, Key), Rejected> {
        let hello = rpc::RackHello::decode(&sealed.body[..]).map_err(|_| Rejected::Malformed)?;
        if hello.name.len() > RACK_NAME_LEN || hello.nonce.len() != NONCE_LEN {
            return Err(Rejected::Malformed);
        }
        let secret = self.secrets.racks.as_ref().ok_or(Rejected::NoRacks)?;
        Key::rack(secret, &hello.name)
            .open(Purpose::EnterRack, sealed)
            .map_err(|_| Rejected::WrongRackSecret)?;
        let key = Key::rack_session(secret, &hello.name, &hello.cookie, &hello.nonce);
        self.use_cookie(now, &hello.cookie)?;
        Ok((hello, key))
    }

    /// Remembers an admitted rack's key.
    pub fn open_rack(&mut self, rack: RackId, key: Key) {
        self.racks.insert(rack, RackSession { key, last_counter: 0 });
    }

    /// Opens a rack's report.
    pub fn rack_report(&mut self, sealed: &rpc::Sealed) -> Result<(RackId, rpc::RackReport, Key), Rejected> {
        let report = rpc::RackReport::decode(&sealed.body[..]).map_err(|_| Rejected::Malformed)?;
        let rack = RackId(report.session);
        let session = self.racks.get_mut(&rack).ok_or(Rejected::UnknownSession)?;
        session.key.open(Purpose::ServeRack, sealed).map_err(|_| Rejected::WrongRackSecret)?;
        if report.counter <= session.last_counter {
            return Err(Rejected::Replayed);
        }
        session.last_counter = report.counter;
        Ok((rack, report, session.key.clone()))
    }

    /// Opens what a rack passes on. It may come in any order, and again: the call within it has a counter of its own.
    pub fn relayed(&self, sealed: &rpc::Sealed) -> Result<(RackId, rpc::RelayedCall), Rejected> {
        let call = rpc::RelayedCall::decode(&sealed.body[..]).map_err(|_| Rejected::Malformed)?;
        let rack = RackId(call.session);
        let session = self.racks.get(&rack).ok_or(Rejected::UnknownSession)?;
        session.key.open(Purpose::Relay, sealed).map_err(|_| Rejected::WrongRackSecret)?;
        Ok((rack, call))
    }

    /// Forgets a rack's session.
    pub fn forget_rack(&mut self, rack: RackId) {
        self.racks.remove(&rack);
    }

    /// Forgets a session.
    pub fn forget(&mut self, member: MemberId) {
        self.sessions.remove(&member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Duration::from_secs(100);

    fn gate() -> Gate {
        let secrets = Secrets {
            default: Some(Secret::new("the default secret").unwrap()),
            jobs: HashMap::from([("own".into(), Secret::new("a secret of its own").unwrap())]),
            racks: Some(Secret::new("the racks' own secret").unwrap()),
        };
        Gate::new(secrets, [7; 32])
    }

    fn join(cookie: Vec<u8>, job: &str, secret: &str) -> rpc::Sealed {
        let nonce = vec![1; NONCE_LEN];
        let request = rpc::JoinRequest { cookie, nonce, job: job.into(), ..Default::default() };
        Key::join(&Secret::new(secret).unwrap(), job).seal(Purpose::Join, request.encode_to_vec())
    }

    #[test]
    fn joins() {
        let forged = |gate: &Gate| {
            let mut cookie = gate.cookie(START, [0; 16]);
            cookie[20] ^= 1;
            cookie
        };
        type Cookie = fn(&Gate) -> Vec<u8>;
        type Case = (&'static str, Cookie, &'static str, &'static str, Duration, Option<Rejected>);
        let fresh: Cookie = |gate| gate.cookie(START, [0; 16]);
        let table: [Case; 9] = [
            ("default secret", fresh, "any", "the default secret", START, None),
            ("own secret", fresh, "own", "a secret of its own", START, None),
            (
                "default for one with its own",
                fresh,
                "own",
                "the default secret",
                START,
                Some(Rejected::WrongSecret),
            ),
            ("wrong secret", fresh, "any", "a wrong secret....", START, Some(Rejected::WrongSecret)),
            ("at the last moment", fresh, "any", "the default secret", START + COOKIE_AGE, None),
            (
                "too late",
                fresh,
                "any",
                "the default secret",
                START + COOKIE_AGE * 2,
                Some(Rejected::StaleCookie),
            ),
            ("no cookie", |_| vec![], "any", "the default secret", START, Some(Rejected::StaleCookie)),
            ("forged cookie", forged, "any", "the default secret", START, Some(Rejected::StaleCookie)),
            (
                "another process's cookie",
                |_| Gate::new(Secrets::default(), [8; 32]).cookie(START, [0; 16]),
                "any",
                "the default secret",
                START,
                Some(Rejected::StaleCookie),
            ),
        ];
        for (what, cookie, job, secret, now, expected) in table {
            let mut gate = gate();
            let sealed = join(cookie(&gate), job, secret);
            assert_eq!(gate.join(now, &sealed).err(), expected, "{what}");
            assert_eq!(
                gate.used.len(),
                usize::from(expected.is_none()),
                "{what}: nothing is kept of a refused one"
            );
        }
    }

    #[test]
    fn a_cookie_is_used_once_and_forgotten_when_stale() {
        let mut gate = gate();
        let sealed = join(gate.cookie(START, [0; 16]), "any", "the default secret");
        assert!(gate.join(START, &sealed).is_ok());
        assert_eq!(gate.join(START, &sealed).err(), Some(Rejected::Replayed));
        assert_eq!(gate.join(START + COOKIE_AGE * 2, &sealed).err(), Some(Rejected::StaleCookie));
        let later = START + COOKIE_AGE * 3;
        let next = join(gate.cookie(later, [1; 16]), "any", "the default secret");
        assert!(gate.join(later, &next).is_ok());
        assert_eq!(gate.used.len(), 1, "the stale one is gone");
    }

    #[test]
    fn sessions_refuse_replays_and_other_keys() {
        let mut gate = gate();
        let key = Key::session(&Secret::new("the default secret").unwrap(), "any", b"cookie", b"nonce");
        let member = MemberId(5);
        gate.open_session(member, key.clone());
        let request =
            |counter| rpc::SessionRequest { session: 5, counter, ..Default::default() }.encode_to_vec();
        let heartbeat = key.seal(Purpose::Heartbeat, request(1));
        let error = |r: Result<(MemberId, _, _), Rejected>| r.map(|(member, _, _)| member);
        assert_eq!(error(gate.session(Purpose::Leave, &heartbeat)), Err(Rejected::WrongSecret), "as a leave");
        assert_eq!(error(gate.session(Purpose::Heartbeat, &heartbeat)), Ok(member));
        assert_eq!(error(gate.session(Purpose::Heartbeat, &heartbeat)), Err(Rejected::Replayed));
        let late = key.seal(Purpose::Heartbeat, request(9));
        let early = key.seal(Purpose::Heartbeat, request(8));
        assert_eq!(error(gate.session(Purpose::Heartbeat, &late)), Ok(member));
        assert_eq!(error(gate.session(Purpose::Heartbeat, &early)), Err(Rejected::Replayed), "out of order");
        let post = |counter| key.seal(Purpose::Post, request(counter));
        assert_eq!(error(gate.session(Purpose::Post, &post(1))), Ok(member), "posts have their own count");
        assert_eq!(error(gate.session(Purpose::Post, &post(1))), Err(Rejected::Replayed));
        gate.forget(member);
        let next = key.seal(Purpose::Heartbeat, request(10));
        assert_eq!(error(gate.session(Purpose::Heartbeat, &next)), Err(Rejected::UnknownSession));
        let nonsense = rpc::Sealed { body: vec![0xff; 9], mac: vec![] };
        assert_eq!(error(gate.session(Purpose::Heartbeat, &nonsense)), Err(Rejected::Malformed));
        assert_eq!(gate.join(START, &nonsense).err(), Some(Rejected::Malformed));
    }

    #[test]
    fn few_heartbeats_of_one_session_wait() {
        let mut gate = gate();
        let key = Key::session(&Secret::new("the default secret").unwrap(), "any", b"cookie", b"nonce");
        for member in [1, 2] {
            gate.open_session(MemberId(member), key.clone());
        }
        let waiting: Vec<_> = (0..MOST_WAITING).map(|_| gate.wait(MemberId(1)).unwrap()).collect();
        assert!(gate.wait(MemberId(1)).is_none(), "one more");
        assert!(gate.wait(MemberId(2)).is_some(), "of another session");
        drop(waiting);
        assert!(gate.wait(MemberId(1)).is_some(), "they were answered");
        assert!(gate.wait(MemberId(3)).is_none(), "no session");
    }

    #[test]
    fn racks_have_a_secret_of_their_own() {
        let mut gate = gate();
        let hello = |gate: &Gate, secret: &str| {
            let hello = rpc::RackHello {
                cookie: gate.cookie(START, [3; 16]),
                nonce: vec![1; NONCE_LEN],
                name: "r0".into(),
                ..Default::default()
            };
            Key::rack(&Secret::new(secret).unwrap(), "r0").seal(Purpose::EnterRack, hello.encode_to_vec())
        };
        let wrong = hello(&gate, "the default secret");
        assert_eq!(gate.enter_rack(START, &wrong).err(), Some(Rejected::WrongRackSecret), "a job's secret");
        let right = hello(&gate, "the racks' own secret");
        let (_, key) = gate.enter_rack(START, &right).unwrap();
        assert_eq!(gate.enter_rack(START, &right).err(), Some(Rejected::Replayed));
        let rack = RackId(9);
        gate.open_rack(rack, key.clone());
        let report = |counter| {
            let report = rpc::RackReport { session: 9, counter, ..Default::default() };
            key.seal(Purpose::ServeRack, report.encode_to_vec())
        };
        assert!(gate.rack_report(&report(1)).is_ok());
        assert_eq!(gate.rack_report(&report(1)).err(), Some(Rejected::Replayed));
        let call = rpc::RelayedCall { session: 9, ..Default::default() }.encode_to_vec();
        assert!(gate.relayed(&key.seal(Purpose::Relay, call.clone())).is_ok());
        let as_report = key.seal(Purpose::ServeRack, call);
        assert_eq!(gate.relayed(&as_report).err(), Some(Rejected::WrongRackSecret));
        gate.forget_rack(rack);
        assert_eq!(gate.rack_report(&report(2)).err(), Some(Rejected::UnknownSession));
        let mut without = Gate::new(Secrets::default(), [7; 32]);
        assert_eq!(without.enter_rack(START, &right).err(), Some(Rejected::NoRacks));
    }
}
