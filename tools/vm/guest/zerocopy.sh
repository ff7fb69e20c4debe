# AF_XDP: the cases are driver x mode of the daemon.
modes="zerocopy auto copy generic"
[ "$suite" != smoke ] || modes="zerocopy copy"

run() { # DRIVER MODE NIC0 NIC1
    local driver=$1 mode=$2 rank status first second detail
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
        sum 0 "$mode" & first=$!
        sum 1 "$mode" & second=$!
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
