# Emulated NICs: two workers, each a namespace with one NIC, and the aggregator, one-armed behind a NIC of its
# own, on one Ethernet:
#
#   worker 0 ─ NIC ─┐
#   worker 1 ─ NIC ─┼─ hub ─ agg0 ─ aggregator (this namespace)

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
        inside "$rank" ip link set "$nic" mtu "$mtu" || result "$nic" failed "no MTU of $mtu"
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
        # The driver cannot, and the error says so.
        "zerocopy "*"zero-copy"*) status=refused ;;
        # Nor does it run XDP at this MTU.
        "zerocopy "*"the driver refused it"* | "copy "*"the driver refused it"*)
            [ "$suite" = jumbo ] && status=refused || status=failed
            ;;
        *) status=failed ;;
        esac
        case "$(uname -r) $detail" in
        5.* | 6.[0-5].*"need Linux 6.6"*) status=refused ;;
        esac
        result "$driver, $mode" "$status" "$detail"
    else
        # Over UDP nothing receives the results of workers behind one port, which go to a multicast group.
        detail=$(bound 0)
        case $detail in *backend:udp*) jobs=direct ;; esac
        sum 0 "$mode" "$jobs" & first=$!
        sum 1 "$mode" "$jobs" & second=$!
        wait $first; status=$?
        wait $second || status=$?
        # Jumbo packets are above a page.
        [ "$suite" != jumbo ] || [ "$(chunk 0)" -gt 1000 ] || status=small
        if [ "$status" = 0 ] && correct 0 && correct 1; then
            result "$driver, $mode" ok "$detail"
        else
            tail -n 30 /tmp/sum?.log /tmp/daemon?.log
            sumac-agg status
            result "$driver, $mode" failed \
                "exit code $status: $(tail -n 2 /tmp/sum0.log) (packets of $(chunk 0) words, $detail)"
        fi
    fi
    stop "$1" "$2"
}

ip netns add 0; ip netns add 1
inside 0 ip link set lo up; inside 1 ip link set lo up
aggregate
