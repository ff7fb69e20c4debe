//! A network namespace per test thread, and a minimal program that redirects to AF_XDP sockets.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    process::Command,
    thread,
};

/// Runs `test` in a thread with a new network namespace, which ends with the thread. Without the privilege
/// the test is skipped with a message, or fails when REQUIRE_PRIVILEGED=1.
pub fn in_namespace(name: &'static str, test: fn()) {
    let outcome = thread::spawn(move || {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            assert_ne!(std::env::var("REQUIRE_PRIVILEGED").as_deref(), Ok("1"), "{name}: {error}");
            println!("SKIP {name}: no network namespace: {error} (needs CAP_SYS_ADMIN)");
            return;
        }
        test();
    })
    .join();
    assert!(outcome.is_ok(), "{name} failed");
}

/// Runs `ip` in the thread's namespace.
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip of iproute2");
    assert!(status.success(), "ip {arguments}");
}

/// A veth pair, both ends up, in the thread's namespace.
pub fn veth(one: &str, other: &str) {
    ip(&format!("link add {one} type veth peer name {other}"));
    for name in [one, other] {
        // Keeps the kernel from sending frames of its own.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        ip(&format!("link set {name} up"));
    }
}

fn bpf(command: i32, attributes: &[u8]) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `attributes`, whose pointers are to live buffers of the callers.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), attributes.len()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: these commands return a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn words(values: &[u32]) -> Vec<u8> {
    let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    bytes.resize(128, 0);
    bytes
}

fn pointer(bytes: &mut [u8], at: usize, value: *const u8) {
    bytes[at..at + 8].copy_from_slice(&(value as u64).to_ne_bytes());
}

/// `return bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS)` on one interface in driver mode.
pub struct Redirect {
    map: OwnedFd,
    _program: OwnedFd,
    _link: OwnedFd,
}

impl Redirect {
    pub fn attach(interface: &str) -> io::Result<Redirect> {
        const XSKMAP: u32 = 17;
        const XDP: u32 = 6;
        const BPF_XDP: u32 = 37;
        const DRIVER_MODE: u32 = 1 << 2;
        const HAS_FRAGS: u32 = 1 << 5;
        let map = bpf(0, &words(&[XSKMAP, 4, 4, 4]))?;
        let fd = map.as_raw_fd() as u32;
        let instructions: [u64; 6] = [
            0x0000_0000_0010_1261,        // r2 = *(u32 *)(r1 + 16)
            u64::from(fd) << 32 | 0x1118, // r1 = map
            0,                            // (its second half)
            2 << 32 | 0x03b7,             // r3 = XDP_PASS
            51 << 32 | 0x85,              // call redirect_map
            0x95,                         // exit
        ];
        let mut load = words(&[XDP, instructions.len() as u32]);
        pointer(&mut load, 8, instructions.as_ptr().cast());
        pointer(&mut load, 16, c"GPL".as_ptr().cast());
        // `prog_flags`: multi-buffer frames, which an interface with a large MTU requires.
        load[44..48].copy_from_slice(&HAS_FRAGS.to_ne_bytes());
        let program = bpf(5, &load)?;
        let ifindex = nix::net::if_::if_nametoindex(interface)?;
        let link = bpf(28, &words(&[program.as_raw_fd() as u32, ifindex, BPF_XDP, DRIVER_MODE]))?;
        Ok(Redirect { map, _program: program, _link: link })
    }

    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd() as u32;
        let mut update = words(&[self.map.as_raw_fd() as u32]);
        pointer(&mut update, 8, (&raw const queue).cast());
        pointer(&mut update, 16, (&raw const value).cast());
        // SAFETY: as in `bpf`; this command returns zero and no descriptor.
        match unsafe { libc::syscall(libc::SYS_bpf, 2, update.as_ptr(), update.len()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
