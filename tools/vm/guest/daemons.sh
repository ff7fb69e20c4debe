# A worker's daemon and its sums, and the aggregator. Sums of 32-bit integers are compared byte by byte.
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

config() { # RANK NIC MODE: a mode of AF_XDP, udp, or any: what the daemon chooses
    local backend="backend = 'xdp'; mode = '$3'; interface = '$2'"
    case $3 in
        udp) backend="backend = 'udp'" ;;
        any) backend="backend = 'auto'; interface = '$2'" ;;
    esac
    printf '%s\n' "socket = '/run/$1.sock'" "${backend//; /$'\n'}" \
        "aggregator = '10.9.0.1:48600'" "secret_file = '/run/token'" >"/run/$1.toml"
    # Dynamic jobs have a parameter host, where there is its secret.
    [ ! -s /run/racks ] || printf '%s\n' '[parameter_host]' "secret_file = '/run/racks'" >>"/run/$1.toml"
}

sum() { # RANK JOB [MODE]
    timeout 120 sumac allreduce --mode "${3:-static}" --socket "/run/$1.sock" --job "$2" \
        --rank "$1" --world 2 --timeout 40 "/data/in$1.npy" "/tmp/out$1.npy" >"/tmp/sum$1.log" 2>&1
}

# The backend of worker RANK, and how its sockets are bound: zero-copy, copy, or the reason of a fallback.
bound() {
    inside "$1" sumac stats --json --socket "/run/$1.sock" 2>/dev/null |
        grep -oE '"(backend|xdp_mode|zero_copy|fallback)": *("[^"]*"|[a-z]+)' | sort -u | tr -d '"' | tr '\n' ' '
}

daemon_ended_or_ready() { # RANK PID PID
    local rank=$1
    shift
    eval "pid=\$$((rank + 1))"
    [ -S "/run/$rank.sock" ] || ! kill -0 "$pid" 2>/dev/null
}

# The words of the packets of the last sum of RANK.
chunk() { grep -oE 'chunk=[0-9]+' "/tmp/sum$1.log" | cut -d = -f 2; }

correct() { # The header of the output may be padded otherwise.
    [ "$(tail -c 400000 "/tmp/out$1.npy" 2>/dev/null | md5sum)" = "$(tail -c 400000 /data/sum.npy | md5sum)" ]
}

# The aggregator on agg0, with the join token in /run/token.
aggregate() {
    ip address add 10.9.0.1/24 dev agg0
    ip link set agg0 mtu "$mtu" up
    sumac-agg attach agg0 --slots 256 --dynamic-slots 256 || result aggregator failed "it cannot be attached"
    sumac-agg serve --state-dir /tmp/agg --listen 10.9.0.1:48600 >/tmp/agg.log 2>&1 &
    await 60 test -s /tmp/agg/certificate.pem
    umask 077
    sumac-agg token --state-dir /tmp/agg >/run/token
}

mtu=1500
[ "$suite" != jumbo ] || mtu=9000
