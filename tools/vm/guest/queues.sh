# What ports of a switch do to frames: they lose, delay, reorder and damage them (netem), and queue them by
# class, with RED that marks or drops (`sumac qos show`).

# All ports of workers.
ports() { # COMMAND WORDS..: of tc qdisc, behind the device
    local command=$1 port
    shift
    for port in port-w0 port-w1; do
        # shellcheck disable=SC2068 # words
        tc qdisc "$command" dev "$port" $@ || return 1
    done
}

# The same ports' other ends. What sockets of AF_XDP send has no queue there.
uplinks() { # COMMAND WORDS..: of tc qdisc
    local command=$1 rank
    shift
    for rank in 0 1; do
        # shellcheck disable=SC2068 # words
        inside "$rank" tc qdisc "$command" dev "w$rank" $@ || return 1
    done
}

# Frames, drops and marks of the queues of a port, control first, in the words of tc.
queued() { # PORT
    local handle counts
    for handle in 10 11 12 13 14 15 16; do
        counts=$(tc -s qdisc show dev "$1" | grep -A 3 -E "^qdisc [a-z]+ $handle:" |
            grep -oE '[0-9]+ pkt|dropped [0-9]+|marked [0-9]+|early [0-9]+' | tr '\n' ' ')
        echo "$handle: ${counts% }"
    done
}

total() { # PORT WORD
    queued "$1" | grep -oE "$2 [0-9]+" | awk '{ sum += $2 } END { print sum + 0 }'
}

classified() { # RANK PRIORITY: a sum of 100,000 elements, of which half are important
    timeout 120 sumac allreduce --mode direct --importance magnitude --priority "$2" --socket "/run/$1.sock" \
        --job "classes$2" --rank "$1" --world 2 --timeout 60 "/data/in$1.npy" "/tmp/out$1.npy" \
        >"/tmp/sum$1.log" 2>&1
}

connect w0 w1
for netem in "loss 1%" "delay 2ms 1ms" "delay 2ms reorder 25% 50%" "corrupt 1%"; do
    ports replace root netem "$netem" || result "$netem" failed "tc does not take it"
    for mode in copy udp; do
        case "$mode $netem" in
            # The ports' GRO has verified the checksums, after which no socket does: damage comes before.
            "udp corrupt"*)
                ports del root
                uplinks replace root netem "$netem" || result "$netem" failed "tc does not take it"
                ;;
        esac
        run "$netem" "$mode" w0 w1
    done
    case $netem in
        loss*)
            ! tc -s qdisc show dev port-w1 | grep -q 'dropped 0,' || result "$netem" failed "nothing was lost"
            ;;
    esac
done

# Ports of 20 Mbit/s, below which the printed queues are, with counters at zero.
queue() {
    local port
    for port in port-w0 port-w1; do
        tc qdisc del dev "$port" root
        tc qdisc add dev "$port" root handle 8: tbf rate 20mbit burst 4k limit 1m || return 1
        sumac qos show --format tc --interface "$port" --buffer 96 |
            sed 's/root handle 1:/parent 8:1 handle 1:/' >/tmp/qos
        # busybox's shell prefers its own tc.
        bash -e /tmp/qos || return 1
    done
}

uplinks del root
start udp w0 w1 || result "queues" failed "$(tail -n 1 /tmp/daemon0.log)"
for priority in 0 3; do
    queue || result "queues, priority $priority" failed "the printed configuration is not taken"
    classified 0 "$priority" & first=$!
    classified 1 "$priority" & second=$!
    wait $first; status=$?
    wait $second || status=$?
    queued port-w1
    detail="$(queued port-w1 | grep -v ' 0 pkt' | tr '\n' ' ')"
    control=$(queued port-w1 | head -n 1)
    case "$status $control" in
        "0 "*"dropped 0"*)
            if correct 0 && correct 1 && [ "$(total port-w1 early)" -gt 0 ] &&
                [ "$(total port-w1 marked)" -gt 0 ]; then
                result "queues, priority $priority" ok "$detail"
            else
                result "queues, priority $priority" failed "another sum, or RED did not act: $detail"
            fi
            ;;
        *)
            result "queues, priority $priority" failed \
                "exit code $status, $detail: $(tail -n 1 /tmp/sum0.log)"
            ;;
    esac
done
stop w0 w1
disconnect w0 w1
