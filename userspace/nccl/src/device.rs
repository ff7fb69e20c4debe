//! The one device that the plugin has, and its properties.

use std::ffi::{CString, c_int};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{OnceLock, PoisonError};
use std::{fs, path::PathBuf, sync::Mutex};

use crate::abi::{DEVICE_HOST, ID_UNDEFINED, POINTER_HOST, VDevice, v8, v10, v12};
use crate::address::daemon_id;
use crate::daemon;
use crate::error::PluginError;
use crate::log;

/// Communicators at once: a connection to the daemon has a job for each.
const MAX_COMMS: c_int = 128;
/// Bytes of a message, and of a collective operation, at most: as NCCL assumes for version 8.
const MAX_MESSAGE_BYTES: usize = 1 << 30;
const MAX_COLL_BYTES: usize = 512 << 20;
/// Mbit/s where the interface's speed is not known, as NCCL's sockets state it.
const DEFAULT_SPEED: c_int = 10_000;

/// The device.
#[derive(Debug)]
struct Device {
    name: CString,
    /// The path of the daemon's interface below /sys, if it is a device.
    pci_path: Option<CString>,
    guid: u64,
    speed: c_int,
    /// The address of the daemon's data path.
    ip: Option<IpAddr>,
}

static DEVICE: OnceLock<Device> = OnceLock::new();
/// Locked while the device is looked for.
static LOOKING: Mutex<()> = Mutex::new(());

/// Finds the daemon, and the device that is its interface. The first time only: NCCL initializes a plugin for
/// each communicator.
pub(crate) fn find() -> Result<(), PluginError> {
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    if DEVICE.get().is_some() {
        return Ok(());
    }
    let shared = daemon::client()?;
    let hello = shared.client.hello();
    let stats = shared.client.stats()?;
    let interface = stats.ports.iter().find_map(|port| port["interface"].as_str().map(str::to_owned));
    let path = interface.as_ref().map(|interface| Path::new("/sys/class/net").join(interface));
    let device = Device {
        name: c"sumac".into(),
        pci_path: path.as_deref().and_then(pci_path),
        guid: daemon_id(&daemon::socket())?,
        speed: path.as_deref().and_then(speed).unwrap_or(DEFAULT_SPEED),
        ip: stats
            .ports
            .iter()
            .find_map(|port| Some(port["local"].as_str()?.parse::<SocketAddr>().ok()?.ip())),
    };
    log::info(&format!(
        "{} at {}, backend {}, interface {}, {} Mbit/s",
        hello.daemon,
        daemon::socket().display(),
        hello.backend,
        interface.as_deref().unwrap_or("not known"),
        device.speed
    ));
    DEVICE.get_or_init(|| device);
    Ok(())
}

/// The address at which TCP connections are accepted: that of the daemon's data path.
pub(crate) fn ip() -> Result<IpAddr, PluginError> {
    let ip = DEVICE.get().and_then(|device| device.ip);
    ip.ok_or_else(|| PluginError::system("the daemon has no address for TCP connections"))
}

fn pci_path(interface: &Path) -> Option<CString> {
    let path: PathBuf = fs::canonicalize(interface.join("device")).ok()?;
    CString::new(path.into_os_string().into_encoded_bytes()).ok()
}

fn speed(interface: &Path) -> Option<c_int> {
    fs::read_to_string(interface.join("speed")).ok()?.trim().parse().ok().filter(|speed| *speed > 0)
}

/// Checks the number of a device.
pub(crate) fn check(dev: c_int) -> Result<(), PluginError> {
    if dev != 0 {
        return Err(PluginError::argument(format!("there is no device {dev}: device 0 is the only one")));
    }
    Ok(())
}

/// The properties in the form of a version.
pub(crate) trait Versioned: Sized {
    fn of(dev: c_int) -> Result<Self, PluginError>;
}

/// Fills a version's properties: those that not all versions have, for the device of a number.
macro_rules! versioned {
    ($version:ident($dev:ident) { $($member:ident: $value:expr),* $(,)? }) => {
        impl Versioned for $version::Properties {
            fn of($dev: c_int) -> Result<Self, PluginError> {
                check($dev)?;
                let device =
                    DEVICE.get().ok_or_else(|| PluginError::usage("the plugin was not initialized"))?;
                let pci_path = device.pci_path.as_ref();
                Ok($version::Properties {
                    name: device.name.as_ptr().cast_mut(),
                    pci_path: pci_path.map_or(std::ptr::null_mut(), |path| path.as_ptr().cast_mut()),
                    guid: device.guid,
                    ptr_support: POINTER_HOST,
                    reg_is_global: 0,
                    speed: device.speed,
                    port: 0,
                    latency: 0.0,
                    max_comms: MAX_COMMS,
                    max_recvs: 1,
                    net_device_type: DEVICE_HOST,
                    net_device_version: 0,
                    $($member: $value),*
                })
            }
        }
    };
}

versioned!(v8(dev) {});
versioned!(v10(dev) {
    force_flush: 0,
    v_props: VDevice { ndevs: 1, devs: [dev, 0, 0, 0] },
    max_p2p_bytes: MAX_MESSAGE_BYTES,
    max_coll_bytes: MAX_COLL_BYTES,
});
versioned!(v12(dev) {
    force_flush: 0,
    v_props: VDevice { ndevs: 1, devs: [dev, 0, 0, 0, 0, 0, 0, 0] },
    max_p2p_bytes: MAX_MESSAGE_BYTES,
    max_coll_bytes: MAX_COLL_BYTES,
    max_multi_request_size: 1,
    rail_id: ID_UNDEFINED,
    plane_id: ID_UNDEFINED,
});
