//! A connection of NCCL's point-to-point network over TCP (`SUMAC_NCCL_P2P=tcp`), for those who want Sumac
//! for the collective network alone: NCCL takes both networks from one plugin. Messages have their length in
//! front, and go from and to NCCL's memory without a copy.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::counters::Counters;
use crate::error::PluginError;
use crate::link::{Messages, PairLink};
use crate::log;
use crate::memory::UserBytes;

/// Bytes of a message's length.
const HEADER: usize = 8;
/// Messages on their way, at most: as many as NCCL has.
const MESSAGES: usize = 32;
/// Connections that have not sent the listener's number yet, at most.
const UNKNOWN: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct TcpPair {
    is_sender: bool,
    label: &'static str,
    /// `None` after the close.
    stream: Option<TcpStream>,
    messages: HashMap<u64, TcpMessage>,
    next: u64,
    /// The messages that have not ended, in order.
    queue: VecDeque<u64>,
    counters: Counters,
    failure: Option<PluginError>,
}

/// A message on its way.
#[derive(Debug)]
struct TcpMessage {
    user: UserBytes,
    header: [u8; HEADER],
    /// Bytes that have been sent or received, with the header.
    moved: usize,
}

impl TcpPair {
    fn link(is_sender: bool, stream: TcpStream) -> Result<PairLink, PluginError> {
        let prepared = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
        prepared.map_err(|error| PluginError::system(format!("a TCP connection: {error}")))?;
        let label = if is_sender { "send over TCP" } else { "receive over TCP" };
        log::info(&format!("{label}: connected"));
        let pair = TcpPair {
            is_sender,
            label,
            stream: Some(stream),
            messages: HashMap::new(),
            next: 0,
            queue: VecDeque::new(),
            counters: Counters::default(),
            failure: None,
        };
        Ok(PairLink::new(is_sender, pair))
    }

    /// Connects to a listener, and names its number.
    pub(crate) fn connect(address: SocketAddr, id: &[u8; 16]) -> Result<PairLink, PluginError> {
        let connected = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).and_then(|mut stream| {
            stream.write_all(id)?;
            Ok(stream)
        });
        let failed = |error| PluginError::remote(format!("cannot connect to {address}: {error}"));
        TcpPair::link(true, connected.map_err(failed)?)
    }

    fn begin(&mut self, message: TcpMessage) -> Result<Option<u64>, PluginError> {
        if self.messages.len() >= MESSAGES {
            self.counters.deferred += 1;
            return Ok(None);
        }
        self.counters.requests += 1;
        self.next += 1;
        self.messages.insert(self.next, message);
        self.queue.push_back(self.next);
        self.progress()?;
        Ok(Some(self.next))
    }

    /// Moves bytes as far as the socket takes or has some.
    fn progress(&mut self) -> Result<(), PluginError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.transfer().map_err(|error| self.failure.insert(error.context(self.label).logged()).clone())
    }

    fn transfer(&mut self) -> Result<(), PluginError> {
        let closed = || PluginError::usage("the communicator was closed");
        let stream = self.stream.as_mut().ok_or_else(closed)?;
        while let Some(number) = self.queue.front() {
            let Some(message) = self.messages.get_mut(number) else { return Ok(()) };
            while message.moved < HEADER || message.moved < HEADER + message.length()? {
                let moved = if self.is_sender { message.write(stream) } else { message.read(stream) };
                match moved {
                    Ok(0) => return Err(PluginError::remote("the other side closed the connection")),
                    Ok(bytes) => message.moved += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(PluginError::remote(error.to_string())),
                }
            }
            self.queue.pop_front();
        }
        Ok(())
    }
}

impl Messages for TcpPair {
    fn send(&mut self, user: UserBytes) -> Result<Option<u64>, PluginError> {
        self.begin(TcpMessage { user, header: (user.length as u64).to_be_bytes(), moved: 0 })
    }

    fn receive(&mut self, user: UserBytes) -> Result<Option<u64>, PluginError> {
        self.begin(TcpMessage { user, header: [0; HEADER], moved: 0 })
    }

    fn test(&mut self, number: u64) -> Result<Option<usize>, PluginError> {
        self.progress()?;
        if self.queue.contains(&number) {
            return Ok(None);
        }
        let message = self.messages.remove(&number);
        let message = message.ok_or_else(|| PluginError::argument("the request has ended"))?;
        Ok(Some(message.moved - HEADER))
    }

    fn close(&mut self) {
        self.stream = None;
        self.messages.clear();
        log::info(&format!("{}: closed: {}", self.label, self.counters));
    }
}

impl TcpMessage {
    /// The message's length, once its header is there.
    fn length(&self) -> Result<usize, PluginError> {
        let length = usize::try_from(u64::from_be_bytes(self.header)).unwrap_or(usize::MAX);
        if length > self.user.length {
            let room = self.user.length;
            let message = format!("a message of {length} bytes has arrived for a receive of {room}");
            return Err(PluginError::internal(message));
        }
        Ok(length)
    }

    /// The bytes of the message that have not been moved, in NCCL's memory.
    fn rest(&self) -> UserBytes {
        let length = usize::try_from(u64::from_be_bytes(self.header)).unwrap_or(0).min(self.user.length);
        let moved = (self.moved - HEADER).min(length);
        self.user.part(moved, length - moved)
    }

    fn write(&self, stream: &mut TcpStream) -> std::io::Result<usize> {
        if self.moved < HEADER {
            return stream.write(&self.header[self.moved..]);
        }
        // SAFETY: NCCL keeps the message until the request's end, and does not write it.
        stream.write(unsafe { self.rest().as_slice() })
    }

    fn read(&mut self, stream: &mut TcpStream) -> std::io::Result<usize> {
        if self.moved < HEADER {
            return stream.read(&mut self.header[self.moved..]);
        }
        // SAFETY: NCCL keeps the memory until the request's end, and does not access it.
        stream.read(unsafe { self.rest().as_mut_slice() })
    }
}

/// A listener over TCP. It accepts the connection that names its number.
#[derive(Debug)]
pub(crate) struct TcpAcceptor {
    listener: TcpListener,
    /// Connections with the bytes that they have sent.
    unknown: Vec<(TcpStream, Vec<u8>)>,
}

impl TcpAcceptor {
    pub(crate) fn bind(ip: IpAddr) -> Result<(TcpAcceptor, SocketAddr), PluginError> {
        let bound = TcpListener::bind((ip, 0)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((TcpAcceptor { listener, unknown: Vec::new() }, address))
        });
        bound.map_err(|error| PluginError::system(format!("cannot listen at {ip}: {error}")))
    }

    /// Returns the connection that has named this number, if there is one.
    pub(crate) fn accept(&mut self, id: &[u8; 16]) -> Result<Option<PairLink>, PluginError> {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.unknown.len() == UNKNOWN {
                // The oldest: one that sends nothing keeps nobody out.
                self.unknown.remove(0);
            }
            if stream.set_nonblocking(true).is_ok() {
                self.unknown.push((stream, Vec::new()));
            }
        }
        let mut found = None;
        self.unknown.retain_mut(|(stream, received)| {
            let mut buffer = [0; 16];
            match stream.read(&mut buffer[received.len()..]) {
                Ok(0) => return false,
                Ok(bytes) => received.extend(&buffer[received.len()..][..bytes]),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            if received == id && found.is_none() {
                found = stream.try_clone().ok();
            }
            received.len() < id.len()
        });
        found.map(|stream| TcpPair::link(false, stream)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(found) = look() {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn messages_arrive_from_the_connection_that_names_the_number() {
        let id = *b"0123456789abcdef";
        let (mut acceptor, address) = TcpAcceptor::bind(Ipv4Addr::LOCALHOST.into()).unwrap();
        let other = TcpPair::connect(address, b"another number..").unwrap();
        let silent: Vec<_> = (0..2 * UNKNOWN).map(|_| TcpStream::connect(address).unwrap()).collect();
        let sender = TcpPair::connect(address, &id).unwrap();
        let receiver = wait(|| acceptor.accept(&id).unwrap());
        let mut sent = vec![7u8; 3_000_000];
        let mut received = vec![0u8; 3_000_001];
        let to_send = sender.send(UserBytes::new(sent.as_mut_ptr().cast(), sent.len())).unwrap().unwrap();
        let empty = sender.send(UserBytes::new(std::ptr::null_mut(), 0)).unwrap().unwrap();
        let room = UserBytes::new(received.as_mut_ptr().cast(), received.len());
        let to_receive = receiver.receive(room).unwrap().unwrap();
        let last = receiver.receive(UserBytes::new(std::ptr::null_mut(), 0)).unwrap().unwrap();
        let mut length = None;
        wait(|| {
            length = length.or(receiver.messages().test(to_receive).unwrap());
            sender.messages().test(to_send).unwrap().filter(|bytes| *bytes == sent.len())
        });
        assert_eq!(
            length.unwrap_or_else(|| wait(|| receiver.messages().test(to_receive).unwrap())),
            3_000_000
        );
        assert_eq!(wait(|| receiver.messages().test(last).unwrap()), 0);
        assert_eq!(wait(|| sender.messages().test(empty).unwrap()), 0);
        assert!(received.starts_with(&sent) && received[3_000_000] == 0);
        let lost = receiver.receive(room).unwrap().unwrap();
        sender.messages().close();
        assert!(wait(|| receiver.messages().test(lost).err()).message.contains("closed the connection"));
        drop((other, silent));
    }
}
