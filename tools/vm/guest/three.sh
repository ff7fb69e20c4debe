# Three machines, each with one NIC on one Ethernet: the aggregator and two workers. $role is agg, 0 or 1.
inside() { shift; "$@"; }

serve_token() {
    mkdir -p /run/www
    cp /run/token /run/www/token
    # The control plane runs already.
    sumac-agg token --racks --state-dir /tmp/agg >/run/www/racks
    chmod 644 /run/www/*
    httpd -p 10.9.0.1:80 -h /run/www
}

fetch() { # NAME
    wget -q -O "/run/$1" "http://10.9.0.1/$1" && [ -s "/run/$1" ]
}

worker() { # RANK
    local nic="w$1" mode jobs status daemon detail
    ip address add "10.9.0.1$1/24" dev "$nic"
    ip link set "$nic" up
    umask 077
    await 120 fetch token || result "worker $1" failed "no token from the aggregator's machine"
    # Worker 0 is the parameter host of dynamic jobs.
    [ "$1" != 0 ] || await 10 fetch racks || result "worker $1" failed "no secret of parameter hosts"
    for mode in zerocopy copy generic udp; do
        config "$1" "$nic" "$mode"
        rm -f "/run/$1.sock"
        sumac daemon --config "/run/$1.toml" >"/tmp/daemon$1.log" 2>&1 &
        daemon=$!
        await 90 daemon_ended_or_ready "$1" "$daemon" "$daemon"
        if [ ! -S "/run/$1.sock" ]; then
            detail=$(tail -n 1 "/tmp/daemon$1.log")
            status=failed
            # The driver cannot, and the error says so.
            case "$mode $detail" in "zerocopy "*"zero-copy"*) status=refused ;; esac
            result "rank $1, $mode" "$status" "$detail"
            sumac detach "$nic" >/dev/null 2>&1
            continue
        fi
        # It enters a moment after its daemon's start, and rank 1 may ask before.
        sleep 3
        for jobs in static dynamic direct; do
            # Over UDP nothing receives the results of workers behind one port, which go to a multicast group.
            case "$mode $jobs" in "udp static" | "udp dynamic") continue ;; esac
            status=0
            sum "$1" "$mode-$jobs" "$jobs" || status=$?
            if [ "$status" = 0 ] && correct "$1"; then
                result "rank $1, $mode, $jobs" ok "$(bound "$1")"
            else
                tail -n 5 "/tmp/daemon$1.log"
                result "rank $1, $mode, $jobs" failed "exit code $status: $(tail -n 2 "/tmp/sum$1.log")"
            fi
            rm -f "/tmp/out$1.npy"
        done
        { kill "$daemon"; wait "$daemon"; } 2>/dev/null
        sumac detach "$nic" >/dev/null 2>&1
    done
}

case $role in
    agg)
        aggregate
        serve_token
        # Until the machine is ended with the last worker's.
        sleep 3000
        ;;
    *) worker "$role" ;;
esac
