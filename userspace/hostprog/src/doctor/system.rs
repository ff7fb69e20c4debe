//! Checks of the machine, whatever the interface.

use std::{fs, path::Path};

use sumac_loader::{
    mounts::{self, Lifetime},
    preflight::{self, IPC_LOCK, NET_RAW, OLDEST_KERNEL, SYS_ADMIN},
};

use super::check::Check;

/// Packet memory of one queue with the daemon's defaults: 2 x 1,024 frames of 4 KiB, as zero-copy takes them.
/// In copy mode they have 2 KiB.
const QUEUE_MEMORY: u64 = 2 * 1024 * 4096;

pub fn examine(pin_root: &Path) -> Vec<Check> {
    let capabilities = preflight::effective_capabilities().unwrap_or(0);
    vec![
        kernel(&preflight::kernel_release()).named("kernel"),
        btf(Path::new("/sys/kernel/btf/vmlinux").exists()).named("btf"),
        jit(fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").ok().as_deref()).named("jit"),
        check_capabilities(capabilities).named("capabilities"),
        memlock(capabilities, fs::read_to_string("/proc/self/limits").ok().as_deref()).named("memlock"),
        bpffs(pin_root, capabilities).named("bpffs"),
    ]
}

fn kernel(release: &str) -> Check {
    match preflight::kernel_version(release) {
        Some(version) if version >= OLDEST_KERNEL => Check::ok(release),
        Some(_) => Check::fail(
            format!("{release}: older than 5.15, the oldest that Sumac's programs load on"),
            "use a newer kernel, or the daemon's UDP backend (backend = \"udp\")",
        ),
        None => Check::warn(format!("{release:?}: its version is unknown"), "use 5.15 or newer"),
    }
}

fn btf(present: bool) -> Check {
    if present {
        return Check::ok("the kernel has BTF of its types");
    }
    Check::warn(
        "the kernel has no BTF: programs load, but the verifier's messages and bpftool have less detail",
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y",
    )
}

fn jit(setting: Option<&str>) -> Check {
    match setting.map(str::trim) {
        Some("0") => Check::warn(
            "BPF programs are interpreted, several times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Some("2") => Check::warn(
            "BPF programs are compiled, and each time dumped to the kernel's log",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Some(_) => Check::ok("BPF programs are compiled"),
        // The setting is visible in the machine's first network namespace only.
        None => Check::ok("not visible from this network namespace; on by default"),
    }
}

fn check_capabilities(set: u64) -> Check {
    let missing = preflight::missing(set);
    if !missing.is_empty() {
        let needs: Vec<_> =
            missing.iter().map(|needed| format!("{} {}", needed.name, needed.purpose)).collect();
        return Check::fail(
            format!("missing: {}", needs.join(", ")),
            "run as root, or: setcap cap_bpf,cap_perfmon,cap_net_admin,cap_net_raw+ep $(command -v sumac)",
        );
    }
    if !preflight::holds(set, NET_RAW) {
        return Check::warn(
            format!("{} is missing, needed {}", NET_RAW.name, NET_RAW.purpose),
            "give it to the daemon (AmbientCapabilities= in its systemd unit)",
        );
    }
    Check::ok("may load and attach programs and open AF_XDP sockets")
}

fn memlock(capabilities: u64, limits: Option<&str>) -> Check {
    if preflight::holds(capabilities, IPC_LOCK) {
        return Check::ok("no limit (CAP_IPC_LOCK)");
    }
    let limit = limits.and_then(preflight::memory_lock_limit);
    match limit {
        Some(limit) if limit < QUEUE_MEMORY => Check::fail(
            format!("{limit} bytes may be locked; a queue's packet memory takes {QUEUE_MEMORY}"),
            "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, or CAP_IPC_LOCK",
        ),
        Some(limit) => Check::ok(format!("{} queue(s) fit the limit", limit / QUEUE_MEMORY)),
        None => Check::warn("could not read /proc/self/limits", "mount /proc"),
    }
}

/// The remedy in a mount namespace without the machine's bpffs.
const SHARED_MOUNTS: &str = "enter the network namespace alone (`nsenter --net=/run/netns/NAME COMMAND`, not \
`ip netns exec`), or give the container or unit the machine's /sys/fs/bpf";

fn bpffs(pin_root: &Path, capabilities: u64) -> Check {
    let shown = pin_root.display();
    if preflight::is_on_bpffs(pin_root) {
        return lifetime(pin_root, &mounts::lifetime(pin_root));
    }
    let found = format!("{shown} is on no bpf file system: programs could not outlive the process");
    if mounts::is_private() {
        let found =
            format!("{found}; this is a mount namespace of its own, and /sys/fs/bpf may be elsewhere");
        return Check::fail(found, SHARED_MOUNTS);
    }
    if preflight::holds(capabilities, SYS_ADMIN) && pin_root.starts_with("/sys/fs/bpf") {
        return Check::warn(found, "`sumac attach` mounts it, or: mount -t bpf bpf /sys/fs/bpf");
    }
    Check::fail(found, "mount -t bpf bpf /sys/fs/bpf, as root")
}

fn lifetime(pin_root: &Path, lifetime: &Lifetime) -> Check {
    let shown = pin_root.display();
    match lifetime {
        Lifetime::Machine => Check::ok(format!("{shown} can hold pins")),
        Lifetime::Processes { pid, name } => Check::warn(
            format!(
                "{shown} is on a bpffs of this mount namespace alone: programs end with its last process, \
                such as {pid} ({name})"
            ),
            SHARED_MOUNTS,
        ),
        Lifetime::Caller => Check::fail(
            format!("{shown} is on a bpffs that this command has alone: programs would end with it"),
            SHARED_MOUNTS,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::Severity, *};

    #[test]
    fn findings() {
        const LIMITS: &str =
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         65536    65536   bytes\n";
        const PLENTY: &str =
            "Max locked memory         unlimited            unlimited            bytes     \n";
        const ALL: u64 = (1 << 41) - 1;
        let processes = Lifetime::Processes { pid: 7, name: "sh".into() };
        let pins = Path::new("/sys/fs/bpf/sumac");
        let table: [(&str, Check, Severity); 19] = [
            ("a new kernel", kernel("6.18.44"), Severity::Ok),
            ("the oldest kernel", kernel("5.15.0-91-generic"), Severity::Ok),
            ("an old kernel", kernel("5.10.0"), Severity::Fail),
            ("a strange kernel", kernel(""), Severity::Warn),
            ("no BTF", btf(false), Severity::Warn),
            ("JIT", jit(Some("1\n")), Severity::Ok),
            ("no JIT", jit(Some("0\n")), Severity::Warn),
            ("JIT unknown", jit(None), Severity::Ok),
            ("root", check_capabilities(ALL), Severity::Ok),
            ("no capabilities", check_capabilities(0), Severity::Fail),
            ("no raw sockets", check_capabilities(ALL & !(1 << 13)), Severity::Warn),
            ("root locks memory", memlock(ALL, None), Severity::Ok),
            ("little memory", memlock(0, Some(LIMITS)), Severity::Fail),
            ("plenty of memory", memlock(0, Some(PLENTY)), Severity::Ok),
            ("no bpffs, may mount", bpffs(Path::new("/sys/fs/bpf-not"), ALL), Severity::Fail),
            ("the machine's bpffs", lifetime(pins, &Lifetime::Machine), Severity::Ok),
            ("a container's bpffs", lifetime(pins, &processes), Severity::Warn),
            ("the command's own bpffs", lifetime(pins, &Lifetime::Caller), Severity::Fail),
            ("pins in /tmp", bpffs(Path::new("/tmp/x"), ALL), Severity::Fail),
        ];
        for (name, check, level) in table {
            assert_eq!(check.level, level, "{name}: {check:?}");
            assert_eq!(check.remedy.is_some(), level != Severity::Ok, "{name}: {check:?}");
        }
    }
}
