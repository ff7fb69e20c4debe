#!/usr/bin/env bash
# Runs one lab on another kernel: boots a Debian kernel under software emulation with the built
# binaries in its initramfs, runs `sumac-lab run` there, and shows its JSON.
#
#   tools/vm/run.sh [PACKAGE]     a Debian kernel package, by default Debian 12's cloud kernel (6.1)
#
# Needs qemu-system-x86, busybox-static and cpio. Emulated: says what loads and sums, nothing about speed.
set -euo pipefail
cd "$(dirname "$0")/../.."

die() { printf 'vm: %s\n' "$*" >&2; exit 1; }
for tool in qemu-system-x86_64 busybox cpio dpkg-deb; do
    command -v "$tool" >/dev/null || die "$tool is missing: apt-get install qemu-system-x86 busybox-static cpio"
done
for binary in sumac sumac-agg sumac-lab; do
    [ -x "target/release/$binary" ] || die "target/release/$binary is missing: make build"
done

package=${1:-$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ { print $2; exit }')}
cache=target/vm/$package
if [ ! -d "$cache/boot" ]; then
    mkdir -p "$cache"
    (cd "$cache" && apt-get download "$package" >/dev/null 2>&1 && dpkg-deb -x ./*.deb .) || die "cannot get $package"
fi
kernel=$(echo "$cache"/boot/vmlinuz-*)

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,sbin,proc,sys,dev,run,tmp,etc,lib/modules,usr/bin,usr/sbin}
cp "$(command -v busybox)" "$root/bin/busybox"

add() { # a program and the libraries that it needs, at the same paths
    local program=$1 library
    install -D "$program" "$root${2:-$program}"
    for library in $(ldd "$program" 2>/dev/null | grep -oE '/[^ ]+'); do
        [ -e "$root$library" ] || install -D "$(readlink -f "$library")" "$root$library"
    done
}
for binary in sumac sumac-agg sumac-lab; do add "target/release/$binary" "/usr/bin/$binary"; done
for tool in bash ip tc nft ethtool nsenter ss sysctl timeout; do
    path=$(command -v "$tool") || continue
    add "$(readlink -f "$path")" "/usr/bin/$tool"
done
for module in llc stp bridge veth sch_tbf; do
    path=$(find "$cache/lib/modules" -name "$module.ko*" | head -1)
    [ -n "$path" ] && cp "$path" "$root/lib/modules/"
done

cat > "$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp
mkdir -p /dev/shm /sys/fs/bpf; mount -t tmpfs shm /dev/shm; mount -t bpf bpf /sys/fs/bpf
for module in llc stp bridge veth sch_tbf; do [ -e /lib/modules/$module.ko ] && insmod /lib/modules/$module.ko; done
ip link set lo up
echo "vm: $(uname -r)"
sumac-lab run --workers 2 --elements 100000 --iterations 2 --json; echo "vm: exit $?"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$cache/initramfs.gz"
timeout 300 qemu-system-x86_64 -accel tcg -cpu max -smp 2 -m 1024 -nographic -no-reboot -nodefaults -serial stdio \
    -kernel "$kernel" -initrd "$cache/initramfs.gz" -append "console=ttyS0 quiet panic=-1" </dev/null |
    tee "$cache/console.log"
grep -q 'vm: exit 0' "$cache/console.log"
