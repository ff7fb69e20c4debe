#!/usr/bin/env bash
# Boots the Debian tree ROOT with its own systemd, in namespaces of its own; killing this process ends all of
# it.
#   unshare --mount boot.sh ROOT CGROUP
set -euo pipefail
root=$1 cgroup=$2
mount --make-rprivate /

if [ "${3:-}" != inner ]; then
    # systemd has a cgroup for itself, whatever hierarchy the machine has mounted where.
    mount -t cgroup2 cgroup2 "$root/mnt"
    mkdir "$root/mnt/$cgroup"
    echo $$ >"$root/mnt/$cgroup/cgroup.procs"
    umount "$root/mnt"
    exec unshare --net --mount --uts --ipc --pid --cgroup --fork --kill-child "$0" "$root" "$cgroup" inner
fi

mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t bpf bpf sys/fs/bpf -o mode=0700
mount -t tmpfs tmpfs dev -o mode=0755
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts devpts dev/pts -o newinstance,ptmxmode=0666
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run -o mode=0755
pivot_root . .
umount -l .
exec env -i container=sumac PATH=/usr/sbin:/usr/bin chroot . /lib/systemd/systemd --log-target=journal --show-status=no
