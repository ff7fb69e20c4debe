# What happens to NICs under a daemon, in the middle of a sum of 16 MB. The sum ends right or with an error
# within the time that it has; once the NIC is as before, the next sum is right. Daemons that ended are started
# anew for it, and the table says so.
{ cat /data/large.npy; for _ in $(seq 40); do tail -c 400000 /data/in0.npy; done; } >/tmp/large0.npy
{ cat /data/large.npy; for _ in $(seq 40); do tail -c 400000 /data/in1.npy; done; } >/tmp/large1.npy
expected=$(for _ in $(seq 40); do tail -c 400000 /data/sum.npy; done | md5sum)

large() { # RANK JOB
    timeout 100 sumac allreduce --socket "/run/$1.sock" --job "$2" --rank "$1" --world 2 --timeout 60 \
        "/tmp/large$1.npy" "/tmp/out$1.npy" >"/tmp/large$1.log" 2>&1
}

# How a large sum on worker RANK ended.
ending() { # RANK STATUS
    case $2 in
        0) [ "$(tail -c 16000000 "/tmp/out$1.npy" | md5sum)" = "$expected" ] && echo right || echo WRONG ;;
        124) echo HANGS ;;
        *) echo "error \"$(tail -n 1 "/tmp/large$1.log" | cut -c -120)\"" ;;
    esac
}

both() { # JOB: a small sum on both
    local first second
    rm -f /tmp/out?.npy
    sum 0 "$1" & first=$!
    sum 1 "$1" & second=$!
    wait $first && wait $second && correct 0 && correct 1
}

event() { # NAME NIC0 NIC1 COMMAND..: the command is run in worker 0's namespace, and sees $nic
    local name=$1 nic0=$2 nic1=$3 first second status detail again=""
    shift 3
    echo "vm: $name"
    large 0 "$name" & first=$!
    large 1 "$name" & second=$!
    sleep 1
    kill -0 $first 2>/dev/null || again=", the sum had ended before"
    nic=$nic0 nsenter --net=/run/netns/0 bash -c "$*" >/tmp/event.log 2>&1 ||
        again="$again, the event itself failed: $(tail -n 1 /tmp/event.log)"
    wait $first; status=$?
    detail="rank 0 $(ending 0 $status)"
    wait $second; status=$?
    detail="$detail, rank 1 $(ending 1 $status)$again"
    # Whoever lost its interface may have ended.
    # shellcheck disable=SC2086 # two numbers
    for process in $daemons; do
        if ! kill -0 "$process" 2>/dev/null; then
            detail="$detail, a daemon ended: $(tail -n 1 /tmp/daemon0.log | cut -c -120)"
            stop "$nic0" "$nic1"
            start auto "$nic0" "$nic1" || detail="$detail, and does not start"
            break
        fi
    done
    if ! await 60 both "after-$name"; then
        tail -n 5 /tmp/sum?.log /tmp/daemon?.log
        result "$name" failed "$detail; the next sum: $(tail -n 1 /tmp/sum0.log)"
    else
        case $detail in
            *WRONG* | *HANGS*) result "$name" failed "$detail" ;;
            *) result "$name" ok "$detail" ;;
        esac
    fi
}

while read -r driver nic0 nic1; do
    connect "$nic0" "$nic1" </dev/null
    start auto "$nic0" "$nic1" </dev/null || result "$driver" failed "$(tail -n 1 /tmp/daemon0.log)"
    echo "vm: $driver: $(bound 0)"
    both "$driver-first" </dev/null || result "$driver" failed "no sum before the events"
    nics="$nic0 $nic1"
    {
        event "$driver, link down for 1 s" $nics 'ip link set $nic down; sleep 1; ip link set $nic up'
        event "$driver, link down for 4 s" $nics 'ip link set $nic down; sleep 4; ip link set $nic up'
        event "$driver, MTU 1400" $nics 'ip link set $nic mtu 1400; sleep 3; ip link set $nic mtu 1500'
        event "$driver, program removed" $nics 'ip link set $nic xdp off; sleep 3; sumac attach $nic'
        event "$driver, renamed" $nics \
            'ip link set $nic down; ip link set $nic name other; ip link set other up; sleep 3
             ip link set other down; ip link set other name $nic; ip link set $nic up'
        if [ "$driver" = igb ]; then
            event "$driver, rings resized" $nics 'ethtool -G $nic rx 1024 tx 1024'
            event "$driver, queues changed" $nics \
                'ethtool -L $nic combined 2; sleep 3; ethtool -L $nic combined 1'
            event "$driver, renegotiated" $nics 'ethtool -r $nic'
        fi
        event "$driver, unbound" $nics \
            'device=$(readlink -f /sys/class/net/$nic/device); driver=$(readlink -f $device/driver)
             mac=$(cat /sys/class/net/$nic/address)
             echo ${device##*/} >$driver/unbind; sleep 3; echo ${device##*/} >$driver/bind; sleep 2
             nsenter --net=/proc/1/ns/net bash -c "
                 for found in /sys/class/net/*; do
                     [ \$(cat \$found/address) = $mac ] || continue
                     ip link set \${found##*/} name $nic
                     ip link set $nic netns 0
                 done"
             ethtool -L $nic combined 1; ip address add 10.9.0.10/24 dev $nic; ip link set $nic up'
    } </dev/null
    stop "$nic0" "$nic1" </dev/null
    for rank in 0 1; do
        lost=$(grep 'frames are missing' "/tmp/daemon$rank.log") && result "$driver, frames" failed "$lost"
    done
    disconnect "$nic0" "$nic1" </dev/null
done </drivers
