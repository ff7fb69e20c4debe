# Interfaces on top of NICs: a VLAN device, and a bond of one NIC in each mode that its driver has XDP for.
both() { # NAME NIC0 NIC1 MODE
    local first second status detail
    echo "vm: $1"
    if ! start "$4" "$2" "$3"; then
        result "$1" failed "$(tail -n 1 /tmp/daemon0.log)"
        stop "$2" "$3"
        return
    fi
    rm -f /tmp/out?.npy
    sum 0 "$1" & first=$!
    sum 1 "$1" & second=$!
    wait $first; status=$?
    wait $second || status=$?
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
for mode in active-backup balance-rr 802.3ad; do
    for rank in 0 1; do
        eval "nic=\$nic$rank"
        inside "$rank" ip link add bond0 type bond mode "$mode" miimon 100
        inside "$rank" ip link set "$nic" master bond0
        inside "$rank" ip link set "$nic" up
    done
    on bond0
    both "bond, $mode" bond0 bond0 auto
    for rank in 0 1; do
        inside "$rank" ip link del bond0
    done
done
# The aggregator keeps its program on the NIC and sees tagged frames; its address is on a VLAN device, too.
ip address del 10.9.0.1/24 dev agg0
ip link add link agg0 name agg0.7 type vlan id 7
ip address add 10.9.0.1/24 dev agg0.7
ip link set agg0.7 up
for rank in 0 1; do
    eval "nic=\$nic$rank"
    inside "$rank" ip link set "$nic" up
    inside "$rank" ip link add link "$nic" name vlan7 type vlan id 7
done
on vlan7
both "VLAN device" vlan7 vlan7 auto
both "the NIC below a VLAN device" "$nic0" "$nic1" auto
