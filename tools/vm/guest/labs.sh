# Labs of namespaces and veths: XDP and UDP, and the three modes.
lab() { # NAME ARGUMENTS..
    local name=$1 status=0 output
    shift
    output=$(timeout 150 sumac-lab run --workers 2 --elements 100000 --iterations 2 "$@" 2>&1) || status=$?
    if [ "$status" = 0 ]; then
        result "$name" ok "all elements right"
    else
        echo "$output" | tail -n 20
        result "$name" failed "exit code $status: $(echo "$output" | tail -n 2)"
    fi
}

refused() { # NAME WORDS ARGUMENTS..: the lab ends with an error that has these words
    local name=$1 words=$2 output
    shift 2
    output=$(timeout 150 sumac-lab run --workers 2 --elements 1000 "$@" 2>&1)
    case $output in
        *"$words"*) result "$name" ok "refused: $words" ;;
        *)
            echo "$output" | tail -n 20
            result "$name" failed "not refused by \"$words\": $(echo "$output" | tail -n 2)"
            ;;
    esac
}

jumbo="--mtu 9000 --topology one-arm"
lab "static, UDP" --backend udp
case "$suite $(uname -r)" in
    "labs 5.10."*)
        refused "static, XDP" "is too old"
        lab "direct, UDP" --mode direct --backend udp
        ;;
    smoke*)
        lab "static, XDP, loss" --loss 1%
        ;;
    *)
        lab "static, XDP"
        lab "dynamic, XDP" --mode dynamic --slots 256
        lab "direct, XDP" --mode direct
        # AF_XDP takes packets above a page from Linux 6.6 on. The programs load before.
        # shellcheck disable=SC2086 # words
        case $(uname -r) in
            5.* | 6.[0-5].*) refused "static, XDP, jumbo frames" "need Linux 6.6" $jumbo ;;
            *) lab "static, XDP, jumbo frames" $jumbo ;;
        esac
        ;;
esac
