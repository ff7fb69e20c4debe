# AF_XDP: the cases are driver x mode of the daemon.
modes="zerocopy auto copy generic"
[ "$suite" != smoke ] || modes="zerocopy copy"

# What doctor advises about several queues, and what the driver says to rules for UDP ports.
steering() { # NIC
    ip link set "$1" up
    sumac doctor "$1" | grep -A 1 ' steering '
    ethtool -K "$1" ntuple on
    sumac doctor "$1" | grep -A 1 ' steering '
    sumac attach "$1" --steer ntuple 2>&1
    sumac detach "$1" >/dev/null 2>&1
    ethtool -K "$1" ntuple off
    ip link set "$1" down
}

while read -r driver nic0 nic1; do
    [ "$driver" != igb ] || steering "$nic0" </dev/null
    connect "$nic0" "$nic1" </dev/null
    inside 0 sumac doctor "$nic0" </dev/null | grep -A 1 -E ' (rings|steering|interrupts) '
    for mode in $modes; do
        run "$driver" "$mode" "$nic0" "$nic1" </dev/null
    done
    disconnect "$nic0" "$nic1" </dev/null
done </drivers
