//! The connection of `sumac-agg status`, `control`, `ping` and `drop` to a running `sumac-agg serve`: a
//! Unix socket with an abstract name, of which each network namespace has its own, as of ports.
//!
//! A question and its answer are one line of JSON each. Abstract names have no mode, so both sides check the
//! other's user: it must be their own, or root.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    thread,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{getsockopt, sockopt},
    unistd::Uid,
};
use serde::{Deserialize, Serialize};
use sumac_agg_layout::Drops;
use thiserror::Error;

use crate::pins::AggregatorPins;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a question: what is longer is none.
const LONGEST_QUESTION: u64 = 4096;

pub fn host_name(base_port: u16) -> String {
    format!("sumac-agg/host/{base_port}")
}

pub fn switch_name(base_port: u16) -> String {
    format!("sumac-agg/switch/{base_port}")
}

pub fn ebpf_name(pins: &AggregatorPins) -> String {
    format!("sumac-agg/ebpf{}", pins.path().display())
}

pub fn control_name(port: u16) -> String {
    format!("sumac-agg/control/{port}")
}

/// A request to the running `serve`. `json`: the answer is one JSON object, not text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// The status, as `sumac-agg status` prints it.
    Status { json: bool },
    /// Drops parts of a job's packets, or of all jobs': see [`Drops`].
    Drop { job: Option<u16>, up: u32, down: u32 },
    /// The reason for each job's number of slots: a JSON object by job number.
    SlotsReasons,
    /// The jobs' names: a JSON object by job number.
    JobNames,
    /// The members and jobs of a control plane, as `sumac-agg control` prints them.
    Control { json: bool },
    /// Whether the process answers.
    Ping,
}

impl Question {
    pub fn drop(job: Option<u16>, Drops { up, down }: Drops) -> Question {
        Question::Drop { job, up, down }
    }
}

type Answer = Result<String, String>;

#[derive(Debug, Error)]
pub enum AskError {
    #[error(
        "no `sumac-agg serve` answers as @{name} in this network namespace; is it running, and on that port?"
    )]
    Nobody { name: String },
    #[error("@{name} belongs to user {uid}, neither to you nor to root: ask as that user")]
    Unauthenticated { name: String, uid: u32 },
    #[error("asking @{name}: {source}; it answers the user that runs it, and root")]
    Io { name: String, source: io::Error },
    #[error(
        "no answer from @{name} within {timeout:?}: is the switch running, if it serves one? What was asked \
        may still be done"
    )]
    Late { name: String, timeout: Duration },
    #[error("{0}")]
    Refused(String),
}

/// Asks the process that serves under a name.
pub fn ask(name: &str, question: &Question) -> Result<String, AskError> {
    ask_within(ANSWER_TIMEOUT, name, question)
}

fn ask_within(timeout: Duration, name: &str, question: &Question) -> Result<String, AskError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::ConnectionRefused => AskError::Nobody { name: name.to_owned() },
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            AskError::Late { name: name.to_owned(), timeout }
        }
        _ => AskError::Io { name: name.to_owned(), source },
    };
    let mut stream =
        SocketAddr::from_abstract_name(name).and_then(|at| UnixStream::connect_addr(&at)).map_err(failed)?;
    let uid = peer(&stream).map_err(failed)?;
    if !is_trusted(uid) {
        return Err(AskError::Unauthenticated { name: name.to_owned(), uid: uid.as_raw() });
    }
    limit(&stream, timeout).map_err(failed)?;
    let answer = converse(&mut stream, question).map_err(failed)?;
    answer.map_err(AskError::Refused)
}

fn converse(stream: &mut UnixStream, question: &Question) -> io::Result<Answer> {
    write_line(stream, question)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

/// Answers under a name, in a thread of its own, until the process ends.
pub fn serve(name: &str, answer: impl Fn(Question) -> Answer + Send + 'static) -> io::Result<()> {
    serve_on(bind(name)?, answer)
}

/// Takes a name, which another process may have.
pub fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// As [`serve`], under a name that is taken already.
pub fn serve_on(
    listener: UnixListener,
    answer: impl Fn(Question) -> Answer + Send + 'static,
) -> io::Result<()> {
    let serve = move || {
        for stream in listener.incoming() {
            // The client has gone, or is another user's.
            if let Err(error) = stream.and_then(|mut stream| reply(&mut stream, &answer)) {
                tracing::debug!(%error, "a question was not answered");
                thread::sleep(Duration::from_millis(10));
            }
        }
    };
    thread::Builder::new().name("questions".into()).spawn(serve)?;
    Ok(())
}

fn reply(stream: &mut UnixStream, answer: &impl Fn(Question) -> Answer) -> io::Result<()> {
    let uid = peer(stream)?;
    if !is_trusted(uid) {
        return Err(io::Error::other(format!("user {uid} may not ask")));
    }
    limit(stream, ANSWER_TIMEOUT)?;
    let mut line = String::new();
    BufReader::new(&*stream).take(LONGEST_QUESTION).read_line(&mut line)?;
    // Questions are answered one after the other: one that waited longer than its client is not executed.
    if has_gone(stream)? {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let answered = match serde_json::from_str(&line) {
        Ok(question) => answer(question),
        Err(error) => Err(format!("not understood ({error}): are both sides of the same release?")),
    };
    write_line(stream, &answered)
}

fn limit(stream: &UnixStream, timeout: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

/// Whether the other side has closed a connection.
fn has_gone(stream: &UnixStream) -> io::Result<bool> {
    let mut events = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    poll(&mut events, PollTimeout::ZERO)?;
    Ok(events[0].any().unwrap_or(true))
}

fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn peer(stream: &UnixStream) -> io::Result<Uid> {
    Ok(Uid::from_raw(getsockopt(stream, sockopt::PeerCredentials)?.uid()))
}

fn is_trusted(uid: Uid) -> bool {
    uid.is_root() || uid == Uid::effective()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn questions_are_answered_and_nonsense_is_not() {
        let name = format!("sumac-agg/test/{}", std::process::id());
        let question = Question::drop(Some(7), Drops { up: 1, down: u32::MAX });
        assert!(matches!(ask(&name, &question), Err(AskError::Nobody { .. })));
        serve(&name, |question| match question {
            Question::Status { .. } => Err("not now".into()),
            question => Ok(format!("{question:?}\nin two lines")),
        })
        .unwrap();
        assert!(serve(&name, |_| Ok(String::new())).is_err(), "the name is taken");
        assert_eq!(ask(&name, &question).unwrap(), format!("{question:?}\nin two lines"));
        let refused = ask(&name, &Question::Status { json: true }).unwrap_err();
        assert_eq!(refused.to_string(), "not now");
        let at = SocketAddr::from_abstract_name(&name).unwrap();
        for nonsense in ["{}\n".to_owned(), "\"fly\"\n".into(), "x".repeat(LONGEST_QUESTION as usize)] {
            let mut stream = UnixStream::connect_addr(&at).unwrap();
            stream.write_all(nonsense.as_bytes()).unwrap();
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).unwrap();
            assert!(answer.contains("not understood"), "{answer}");
        }
        // Who says nothing holds nobody up for ever.
        drop(UnixStream::connect_addr(&at).unwrap());
        assert!(ask(&name, &Question::SlotsReasons).is_ok());
    }

    #[test]
    fn a_late_answer_has_an_error_of_its_own_and_a_client_that_gave_up_changes_nothing() {
        let name = format!("sumac-agg/test/late/{}", std::process::id());
        let (release, released) = mpsc::channel::<()>();
        let (executed, seen) = mpsc::channel();
        let answer = move |question| {
            executed.send(question).unwrap();
            released.recv().map(|()| String::new()).map_err(|error| error.to_string())
        };
        serve(&name, answer).unwrap();
        let long = Duration::from_secs(60);
        let drop = |job| Question::drop(Some(job), Drops::default());
        thread::scope(|scope| {
            let first = scope.spawn(|| ask_within(long, &name, &drop(1)));
            assert_eq!(seen.recv_timeout(long).unwrap(), drop(1));
            let late = ask_within(Duration::from_millis(50), &name, &drop(2)).unwrap_err();
            assert!(late.to_string().contains("no answer from @sumac-agg/test/late/"), "{late}");
            assert!(late.to_string().contains("within 50ms: is the switch running"), "{late}");
            release.send(()).unwrap();
            first.join().unwrap().unwrap();
        });
        release.send(()).unwrap();
        ask_within(long, &name, &drop(3)).unwrap();
        assert_eq!(seen.try_iter().collect::<Vec<_>>(), [drop(3)], "the second is not executed");
    }
}
