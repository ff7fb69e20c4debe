# Interfaces on top of NICs: bonds, where AF_XDP is refused by name and a job runs over UDP, and VLAN devices.

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
    refused=$(inside 0 sumac attach bond0 2>&1)
    case $refused in
        *"bond0 is a bond"*) result "bond, $mode, attach" ok "refused: is a bond" ;;
        *) result "bond, $mode, attach" failed "$refused" ;;
    esac
    run "bond, $mode" any bond0 bond0
    run "bond, $mode" udp bond0 bond0
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
run "VLAN device" auto vlan7 vlan7
run "VLAN device" udp vlan7 vlan7
