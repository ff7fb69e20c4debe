//! One blocking netlink request or command, and its reply.
//!
//! sysfs shows the devices of the network namespace that it was mounted in, netlink those of the calling
//! thread's; only the second is right under `nsenter --net`.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

/// Room for one reply; the kernel's replies about one device stay below 32 KiB.
const REPLY_BYTES: usize = 64 * 1024;

/// Sends one request and returns the first message of its reply.
pub fn request<T>(protocol: isize, message: impl Into<NetlinkPayload<T>>) -> io::Result<T>
where
    T: NetlinkSerializable + NetlinkDeserializable,
{
    match exchange(protocol, message)? {
        NetlinkPayload::InnerMessage(inner) => Ok(inner),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a netlink reply without a message")),
    }
}

/// Sends one command, whose reply is an acknowledgement.
pub fn command<T>(protocol: isize, message: impl Into<NetlinkPayload<T>>) -> io::Result<()>
where
    T: NetlinkSerializable + NetlinkDeserializable,
{
    match exchange(protocol, message)? {
        NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a netlink reply without an acknowledgement")),
    }
}

fn exchange<T>(protocol: isize, message: impl Into<NetlinkPayload<T>>) -> io::Result<NetlinkPayload<T>>
where
    T: NetlinkSerializable + NetlinkDeserializable,
{
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;

    let mut request = NetlinkMessage::new(NetlinkHeader::default(), message.into());
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut reply = Vec::with_capacity(REPLY_BYTES);
    socket.recv(&mut reply, 0)?;
    Ok(NetlinkMessage::<T>::deserialize(&reply).map_err(invalid)?.payload)
}

/// Returns the number that a generic netlink family has since boot.
///
/// # Errors
/// As [`request`]; `NotFound` when the kernel has no such family.
pub fn generic_family(name: &str) -> io::Result<u16> {
    let mut message = GenlMessage::from_payload(GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(name.to_owned())],
    });
    message.finalize();
    request(NETLINK_GENERIC, message)?
        .payload
        .nlas
        .iter()
        .find_map(|attribute| match attribute {
            GenlCtrlAttrs::FamilyId(id) => Some(*id),
            _ => None,
        })
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no netlink family {name}")))
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
