# Debian 13 and its systemd, with Sumac's packages as docs/install.md has them installed: user, capabilities
# and sandbox of the units, sums, reload, watchdog, restart, stop, removal.
#
#   alice ─ sumac.service, eth1 10.77.0.2 ─ port0 10.77.0.1 ─┐
#                                                            ├─ sumac-agg.service, namespace agg
#   alice ─ other.service, eth2 10.77.1.2 ─ port1 10.77.1.1 ─┘
#           (namespace 1)
units="sumac sumac-agg"
property() { systemctl show --property="$2" --value "$1"; }
main_pid() { property "$1" MainPID; }

trouble() {
    journalctl --no-pager | grep -E 'Watchdog timeout|Failed with result|Main process exited'
    journalctl --no-pager --lines=15 --output=cat
}

expect() { # CASE EXPECTED FOUND
    echo "vm: $SECONDS s: $1"
    if [ "$2" = "$3" ]; then
        result "$1" ok "$3"
    else
        trouble
        result "$1" failed "$3; expected: $2"
    fi
}

# Fields of /proc/PID/status in the threads of a unit's main process: each value once, without leading zeros.
threads() { # UNIT FIELDS
    sed -nE "s/^($2):[[:space:]]*0*(.)/\\1 \\2/p" "/proc/$(main_pid "$1")"/task/*/status | sort -u |
        tr '\t\n' '  '
}

install_packages() {
    cd /packages || return
    apt-get install --yes ./sumac-agg_*.deb ./sumac_*.deb >/tmp/apt.log 2>&1 || tail -n 20 /tmp/apt.log
    expect "sumac, installed" "disabled inactive" "$(systemctl is-enabled sumac) $(systemctl is-active sumac)"
    expect "sumac-agg, installed" "disabled inactive" \
        "$(systemctl is-enabled sumac-agg) $(systemctl is-active sumac-agg)"
}

connect() { # RANK NIC
    ip link add "$2" type veth peer "port$1" netns agg
    [ "$1" = 0 ] || ip link set "$2" netns "$1"
    inside "$1" ip address add "10.77.$1.2/24" dev "$2"
    # A veth takes frames of its peer's program with GRO, and programs take packets with whole checksums.
    inside "$1" ethtool -K "$2" gro on tx off >/dev/null
    inside "$1" ip link set "$2" up
    inside agg ip address add "10.77.$1.1/24" dev "port$1"
    inside agg ip link set "port$1" up
}

network() {
    ip netns add agg
    ip netns add 1
    # Rank 0 is in the namespace of the machine.
    ln -s /proc/1/ns/net /run/netns/0
    for name in agg 0 1; do inside "$name" ip link set lo up; done
    connect 0 eth1
    connect 1 eth2
}

daemon_config() { # RANK NIC SOCKET BACKEND
    printf '%s\n' "aggregator = '10.77.$1.1:48600'" "secret_file = '/etc/sumac/token'" "socket = '$3'" \
        "interface = '$2'" "backend = '$4'" '[[allow]]' "groups = ['sumac']" "jobs = ['{user}:*']"
}

configure() { # BACKEND
    daemon_config 0 eth1 /run/sumac/sumac.sock "$1" >/etc/sumac/daemon.toml
    daemon_config 1 eth2 /run/other/sumac.sock "$1" >/etc/sumac/other.toml
}

prepare() {
    printf '%s\n' 'ATTACH="port0 port1 --slots 256"' 'SERVE="--listen 0.0.0.0:48600"' >/etc/default/sumac-agg
    mkdir /etc/systemd/system/sumac-agg.service.d
    printf '%s\n' '[Service]' 'NetworkNamespacePath=/run/netns/agg' \
        >/etc/systemd/system/sumac-agg.service.d/vm.conf
    sed -e 's,/etc/sumac/daemon.toml,/etc/sumac/other.toml,' \
        -e 's,^RuntimeDirectory=.*,RuntimeDirectory=other,' \
        -e 's,^\[Service\],&\nNetworkNamespacePath=/run/netns/1,' \
        /usr/lib/systemd/system/sumac.service >/etc/systemd/system/other.service
    probe_units
    systemctl daemon-reload
    systemctl enable --now sumac-agg 2>&1
    (umask 077; inside agg sumac-agg token >/run/token)
    install -o sumac -g sumac -m 600 /run/token /etc/sumac/token
    configure xdp
    runuser -u sumac -- sumac daemon --config /etc/sumac/daemon.toml --check
    systemctl enable --now sumac 2>&1
    systemctl start other
    useradd alice
    usermod -aG sumac alice
    ln -s /run/sumac/sumac.sock /run/0.sock
    ln -s /run/other/sumac.sock /run/1.sock
}

allreduce() { # RANK JOB FILES
    timeout 240 runuser -u alice -- sumac allreduce --socket "/run/$1.sock" --job "alice:$2" --rank "$1" \
        --world 2 --timeout 120 "$3$1.npy" "/tmp/out$1.npy" >"/tmp/sum$1.log" 2>&1
}

both() { # JOB: a sum on both
    local first second status
    rm -f /tmp/out?.npy
    allreduce 0 "$1" /data/in & first=$!
    allreduce 1 "$1" /data/in & second=$!
    wait $first; status=$?
    wait $second && [ "$status" = 0 ] && correct 0 && correct 1
}

sums() { # CASE
    echo "vm: $SECONDS s: $1"
    if both "${1//[, ]/-}"; then
        result "$1" ok "right, $(bound 0)"
    else
        trouble
        result "$1" failed "$(tail -n 2 /tmp/sum0.log) $(tail -n 1 /tmp/sum1.log)"
    fi
}

# A unit that runs probe.pl, of UNIT's lines without those of the sed script.
probe_unit() { # UNIT NAME SED-SCRIPT
    {
        printf '%s\n' '[Service]' 'Type=oneshot' 'RuntimeDirectory=probe' \
            'ExecStart=/usr/bin/perl /probe.pl /run/probe' "StandardOutput=truncate:/run/$2.log"
        sed "$3" "/usr/lib/systemd/system/$1.service"
    } >"/run/systemd/system/$2.service"
}

probe_units() {
    local unit folder changed='Type|Exec.*|Watchdog.*|Restart.*|RuntimeDirectory.*|StateDirectory.*'
    for unit in $units; do
        probe_unit "$unit" "free-$unit" '/^User=\|^Group=\|^AmbientCapabilities=/!d'
        probe_unit "$unit" "confined-$unit" "/^\(${changed//|/\\|}\)=/d; /^\[Install\]/,\$d"
    done
    for folder in /etc /usr /var/lib /home; do install -d -o sumac "$folder/probe"; done
    touch /tmp/of-the-host
}

attempts() { # UNIT: of probe.pl
    systemctl start "$1"
    cat "/run/$1.log"
}

# What the unit's user may not do, with its capabilities: all of it works in a unit without sandbox.
sandbox() { # UNIT
    local with without wrong filters
    mkdir -p /sys/fs/bpf/others
    chmod 711 /sys/fs/bpf
    without=$(attempts "free-$1")
    with=$(attempts "confined-$1")
    chmod 700 /sys/fs/bpf
    rmdir /sys/fs/bpf/others
    wrong=$(echo "$without" | grep 'denied$' | tr '\n' ' ')
    expect "$1, unit without sandbox" "19 allowed" "$wrong$(echo "$without" | grep -c 'allowed$') allowed"
    # The first three are what the service itself has to do.
    wrong=$(echo "$with" | sed -n -e '1,3{/denied$/p}' -e '4,${/allowed$/p}' | tr '\n' ' ')
    expect "$1, sandbox" "16 denied" "$wrong$(echo "$with" | grep -c 'denied$') denied"
    # The service adds its own filter to those of the unit.
    filters=$(echo "$with" | sed -n 's/^Seccomp_filters:[[:space:]]*//p')
    expect "$1, own filter" "Seccomp_filters $((filters + 1)) " "$(threads "$1" Seccomp_filters)"
}

confined() { # UNIT EFFECTIVE BOUNDING EXPOSURE
    local uid exposure=above
    uid=$(id -u sumac)
    expect "$1, active" "running notify active 0 " \
        "$(property "$1" Type,ActiveState,SubState,NRestarts | sort -r | tr '\n' ' ')"
    expect "$1, user" "Uid $uid $uid $uid $uid " "$(threads "$1" Uid)"
    expect "$1, capabilities" "CapAmb 0 CapBnd $3 CapEff $2 CapInh 0 CapPrm $2 " "$(threads "$1" 'Cap.*')"
    expect "$1, no_new_privs and seccomp" "NoNewPrivs 1 Seccomp 2 " "$(threads "$1" 'NoNewPrivs|Seccomp')"
    systemd-analyze security --no-pager --threshold="$4" "$1" >/tmp/exposure.log && exposure="at most"
    tail -n 1 /tmp/exposure.log
    expect "$1, exposure" "at most ${4%?}.${4#?}" "$exposure ${4%?}.${4#?}"
    sandbox "$1"
}

is_new_main() { # UNIT FORMER
    local state
    state=$(property "$1" MainPID,ActiveState | sort | tr '\n' ' ')
    [ "${state#* }" = "active " ] && [ "${state%% *}" != "$2" ]
}

watchdog() { # UNIT
    local former begin at found restarts
    restarts=$(property "$1" NRestarts)
    former=$(main_pid "$1")
    begin=$(cut -d . -f 1 /proc/uptime)
    kill -STOP "$former"
    # Not by `await`: each look costs an emulated CPU half a second.
    until is_new_main "$1" "$former" || [ "$(cut -d . -f 1 /proc/uptime)" -gt $((begin + 150)) ]; do
        sleep 2
    done
    journalctl --no-pager --unit="$1" --output=short-monotonic >/tmp/journal
    at=$(sed -n 's/^\[ *\([0-9]*\)\..*Watchdog timeout.*/\1/p' /tmp/journal | tail -n 1)
    found="timeout at $((at - begin)) s"
    # WatchdogSec=10, since its last notification.
    [ "$((at - begin))" -lt 5 ] || [ "$((at - begin))" -gt 15 ] || found="timeout in time"
    grep -q "Failed with result 'watchdog'" /tmp/journal && found="$found, result watchdog"
    is_new_main "$1" "$former" && found="$found, active again"
    expect "$1, watchdog" "timeout in time, result watchdog, active again, restarts $((restarts + 1))" \
        "$found, restarts $(property "$1" NRestarts)"
}

privileges() { threads sumac 'Cap.*|Uid|NoNewPrivs|Seccomp|Seccomp_filters'; }

reload() {
    local former first second status found="" before sum
    sum=$(for _ in $(seq 40); do tail -c 400000 /data/sum.npy; done | md5sum)
    { cat /data/large.npy; for _ in $(seq 40); do tail -c 400000 /data/in0.npy; done; } >/tmp/large0.npy
    { cat /data/large.npy; for _ in $(seq 40); do tail -c 400000 /data/in1.npy; done; } >/tmp/large1.npy
    before=$(privileges)
    former=$(main_pid sumac)
    rm -f /tmp/out?.npy
    allreduce 0 reload /tmp/large & first=$!
    allreduce 1 reload /tmp/large & second=$!
    await 60 grep -q 'chunk=' /tmp/sum0.log
    systemctl reload sumac || found="the reload failed, "
    kill -0 $first 2>/dev/null || found="${found}the sum had ended before, "
    wait $first; status=$?
    wait $second || status=$?
    [ "$status" = 0 ] || status="$status: $(tail -n 1 /tmp/sum0.log) $(tail -n 1 /tmp/sum1.log)"
    for rank in 0 1; do
        [ "$(tail -c 16000000 "/tmp/out$rank.npy" | md5sum)" = "$sum" ] || status="$status, wrong"
    done
    expect "sumac, reload in a sum" "exit code 0" "${found}exit code $status"
    found=""
    is_new_main sumac "$former" || found="no new main process"
    [ "$before" = "$(privileges)" ] || found="$found, other privileges: $(privileges)"
    former=$(main_pid sumac)
    # Longer than the watchdog's interval: the new daemon notifies it.
    sleep 15
    [ "$former" = "$(main_pid sumac)" ] || found="$found, ended after the reload"
    [ "$(wc -l </sys/fs/cgroup/system.slice/sumac.service/cgroup.procs)" = 1 ] ||
        found="$found, the former daemon's process stays"
    expect "sumac, reload" "as before" "${found:-as before}"
}

# The numbers of programs, maps and links in the kernel.
objects() {
    perl -e 'for my $command (11, 12, 31) {
        my ($id, $count) = (0, 0);
        for (;;) {
            my $attributes = pack("L32", $id);
            last if syscall(321, $command, $attributes, 128) < 0;
            (undef, $id) = unpack("LL", $attributes);
            $count++;
        }
        print "$count ";
    }'
}

# What the services are to leave as it was.
leftovers() {
    echo "sockets $(find /run/sumac /run/other -type s 2>/dev/null | wc -l), processes $(
        find /proc -maxdepth 1 -user sumac | wc -l), mounts $(sort /proc/1/mounts | md5sum | cut -c -8)"
}
pins() { find /sys/fs/bpf -name 'sumac*' | wc -l; }
are_objects() { [ "$(objects)" = "$1" ]; }

stopped() { # LEFTOVERS OBJECTS
    systemctl stop sumac other sumac-agg
    expect "sumac, stop" "$1, inactive inactive " \
        "$(leftovers), $(systemctl is-active sumac sumac-agg | tr '\n' ' ')"
    # The programs stay attached until then.
    apt-get remove --yes sumac sumac-agg >/tmp/apt.log 2>&1 || tail -n 20 /tmp/apt.log
    await 20 are_objects "$2"
    expect "sumac, removal" "$1, pins 0, programs, maps and links $2" \
        "$(leftovers), pins $(pins), programs, maps and links $(objects)"
}

echo "vm: $(systemctl --version | head -n 1), $(systemctl is-system-running)"
install_packages
network
found_before=$(leftovers)
objects_before=$(objects)
prepare
sums "sumac, sum over AF_XDP"
confined sumac c000003000 c000203000 27
confined sumac-agg c000001000 c000201000 22
reload
for unit in $units; do
    watchdog "$unit"
    sums "$unit, sum after the watchdog"
done
token=$(inside agg sumac-agg token)
systemctl restart sumac-agg sumac
expect "sumac-agg, restart" "the same token" \
    "$([ "$token" = "$(inside agg sumac-agg token)" ] && echo the same token || echo another token)"
sums "sumac, sum after the restart"
configure udp
systemctl restart sumac other
sums "sumac, sum over UDP"
expect "sumac, capabilities over UDP" "CapEff 1000 CapPrm 1000 " "$(threads sumac 'CapEff|CapPrm')"
stopped "$found_before" "$objects_before"
echo "vm: complete"
