# Interfaces on top of NICs: bonds, where a job runs over UDP since AF_XDP sockets receive nothing there, and
# VLAN devices.
both() { # NAME NIC0 NIC1 MODE
    local first second status detail
    echo "vm: $1"
    if ! start "$4" "$2" "$3"; then
        result "$1" failed "$(tail -n 1 /tmp/daemon0.log)"
        stop "$2" "$3"
        return
    fi
    rm -f /tmp/out?.npy
    # Over UDP nothing receives the results of workers behind one port, which go to a multicast group.
    [ "$4" != udp ] || mode_of_jobs=direct
    sum 0 "$1" & first=$!
    sum 1 "$1" & second=$!
    wait $first; status=$?
    wait $second || status=$?
    mode_of_jobs=static
    detail=$(bound 0)
    if [ "$status" = 0 ] && correct 0 && correct 1; then
        result "$1" ok "$detail"
    else
        tail -n 12 /tmp/sum?.log /tmp/daemon0.log
        result "$1" failed "exit code $status: $(tail -n 2 /tmp/sum0.log) ($detail)"
    fi
    stop "$2" "$3"
}

# The workers' addresses are on DEVICE, as the aggregator's.
on() { # DEVICE
    local rank
    for rank in 0 1; do
        inside "$rank" ip address add "10.9.0.1$rank/24" dev "$1"
        inside "$rank" ip link set "$1" up
    done
    await 30 inside 0 ping -c 1 -W 1 10.9.0.1 >/dev/null || result "$1" failed "no ping before Sumac"
}

read -r _ nic0 nic1 </drivers
nic=$nic0
connect "$nic0" "$nic1"
disconnect "$nic0" "$nic1"
for mode in active-backup balance-rr; do
    for rank in 0 1; do
        eval "nic=\$nic$rank"
        inside "$rank" ip link add bond0 type bond mode "$mode" miimon 100
        inside "$rank" ip link set "$nic" master bond0
        inside "$rank" ip link set "$nic" up
    done
    on bond0
    both "bond, $mode, UDP" bond0 bond0 udp
    for rank in 0 1; do
        inside "$rank" ip link del bond0
    done
done
# The aggregator has its address and a program on a VLAN device.
ip address del 10.9.0.1/24 dev agg0
ip link add link agg0 name agg0.7 type vlan id 7
ip address add 10.9.0.1/24 dev agg0.7
ip link set agg0.7 up
sumac-agg attach agg0.7 || result "VLAN device" failed "the aggregator cannot be attached"
for rank in 0 1; do
    eval "nic=\$nic$rank"
    inside "$rank" ip link set "$nic" up
    inside "$rank" ip link add link "$nic" name vlan7 type vlan id 7
done
on vlan7
both "VLAN device" vlan7 vlan7 auto
both "VLAN device, UDP" vlan7 vlan7 udp
