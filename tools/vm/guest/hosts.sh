# Emulated NICs: two workers, each a namespace with one NIC, and the aggregator, one-armed behind a NIC of its
# own, on one Ethernet:
#
#   worker 0 ─ NIC ─┐
#   worker 1 ─ NIC ─┼─ hub ─ agg0 ─ aggregator (this namespace)
#
# Sums of 32-bit integers over packets of the full MTU are compared byte by byte.
inside() { local name=$1; shift; nsenter --net="/run/netns/$name" "$@"; }

await() { # SECONDS COMMAND..
    local left=$(($1 * 5))
    shift
    until "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 0.2
    done
}

config() { # RANK NIC MODE: a mode of AF_XDP, or udp
    local backend="backend = 'xdp'
mode = '$3'
interface = '$2'"
    [ "$3" != udp ] || backend="backend = 'udp'"
    printf '%s\n' "socket = '/run/$1.sock'" "$backend" \
        "aggregator = '10.9.0.1:48600'" "secret_file = '/run/token'" >"/run/$1.toml"
}

sum() { # RANK JOB [MODE]
    timeout 120 sumac allreduce --mode "${3:-static}" --socket "/run/$1.sock" --job "$2" \
        --rank "$1" --world 2 --timeout 40 "/data/in$1.npy" "/tmp/out$1.npy" >"/tmp/sum$1.log" 2>&1
}

# How the sockets of worker RANK are bound: zero-copy, copy, or the reason of a fallback.
bound() {
    inside "$1" sumac stats --json --socket "/run/$1.sock" 2>/dev/null |
        grep -oE '"(xdp_mode|zero_copy|fallback)": *("[^"]*"|[a-z]+)' | sort -u | tr -d '"' | tr '\n' ' '
}

# Starts the daemons of both workers and waits until each is ready or has ended; their numbers are in $daemons.
start() { # MODE NIC0 NIC1
    local rank
    rm -f /run/?.sock /tmp/out?.npy
    daemons=
    for rank in 0 1; do
        eval "nic=\$$((rank + 2))"
        config "$rank" "$nic" "$1"
        inside "$rank" sumac detach "$nic" >/dev/null 2>&1
        # Not by `inside`: the process in the background would be a shell.
        nsenter --net="/run/netns/$rank" \
            sumac daemon --config "/run/$rank.toml" >"/tmp/daemon$rank.log" 2>&1 &
        daemons="$daemons $!"
    done
    for rank in 0 1; do
        # shellcheck disable=SC2086 # two numbers
        await 90 daemon_ended_or_ready "$rank" $daemons
    done
    [ -S /run/0.sock ] && [ -S /run/1.sock ]
}

stop() { # NIC0 NIC1
    local rank
    # shellcheck disable=SC2086 # two numbers
    { kill $daemons; wait $daemons; } 2>/dev/null
    for rank in 0 1; do
        eval "nic=\$$((rank + 1))"
        inside "$rank" sumac detach "$nic" >/dev/null 2>&1
    done
}

# Both NICs into their workers' namespaces, with addresses, up.
connect() { # NIC0 NIC1
    local rank
    for rank in 0 1; do
        eval "nic=\$$((rank + 1))"
        ip link set "$nic" netns "$rank"
        # As doctor advises: all packets of the shard on the queue of its socket.
        inside "$rank" ethtool -L "$nic" combined 1 2>/dev/null
        inside "$rank" ip address add "10.9.0.1$rank/24" dev "$nic"
        inside "$rank" ip link set "$nic" up
    done
    await 30 inside 0 ping -c 1 -W 1 10.9.0.1 >/dev/null || result "$1" failed "no ping before Sumac"
}

disconnect() { # NIC0 NIC1
    local rank
    for rank in 0 1; do
        eval "nic=\$$((rank + 1))"
        inside "$rank" ip address flush dev "$nic"
        inside "$rank" ip link set "$nic" down
    done
}

daemon_ended_or_ready() { # RANK PID PID
    local rank=$1
    shift
    eval "pid=\$$((rank + 1))"
    [ -S "/run/$rank.sock" ] || ! kill -0 "$pid" 2>/dev/null
}

correct() { # The header of the output may be padded otherwise.
    [ "$(tail -c 400000 "/tmp/out$1.npy" 2>/dev/null | md5sum)" = "$(tail -c 400000 /data/sum.npy | md5sum)" ]
}

# One case: daemons in this mode, and a sum.
run() { # DRIVER MODE NIC0 NIC1
    local driver=$1 mode=$2 rank status first second detail jobs=static
    echo "vm: $driver, $mode"
    shift 2
    if ! start "$mode" "$1" "$2"; then
        tail -n 3 /tmp/daemon?.log
        rank=0
        [ ! -S /run/0.sock ] || rank=1
        detail=$(tail -n 1 "/tmp/daemon$rank.log")
        case "$mode $detail" in
        "zerocopy "*"zero-copy"*) status=refused ;; # The driver cannot, and the error says so.
        *) status=failed ;;
        esac
        result "$driver, $mode" "$status" "$detail"
    else
        # Over UDP nothing receives the results of workers behind one port, which go to a multicast group.
        [ "$mode" != udp ] || jobs=direct
        sum 0 "$mode" "$jobs" & first=$!
        sum 1 "$mode" "$jobs" & second=$!
        wait $first; status=$?
        wait $second || status=$?
        detail=$(bound 0)
        if [ "$status" = 0 ] && correct 0 && correct 1; then
            result "$driver, $mode" ok "$detail"
        else
            cat /tmp/sum?.log /tmp/daemon0.log | tail -n 30
            result "$driver, $mode" failed "exit code $status: $(tail -n 2 /tmp/sum0.log) ($detail)"
        fi
    fi
    stop "$1" "$2"
}

ip netns add 0; ip netns add 1
inside 0 ip link set lo up; inside 1 ip link set lo up
ip address add 10.9.0.1/24 dev agg0
ip link set agg0 up
sumac-agg attach agg0 --slots 256 --dynamic-slots 256 || result aggregator failed "it cannot be attached"
sumac-agg serve --state-dir /tmp/agg --listen 10.9.0.1:48600 >/tmp/agg.log 2>&1 &
aggregator=$!
await 60 test -s /tmp/agg/certificate.pem
umask 077
sumac-agg token --state-dir /tmp/agg >/run/token
