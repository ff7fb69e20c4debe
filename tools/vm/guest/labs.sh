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

lab "static, XDP"
lab "static, UDP" --backend udp
lab "dynamic, XDP" --mode dynamic --slots 256
lab "direct, XDP" --mode direct

jumbo="static, XDP, jumbo frames"
case $(uname -r) in
    5.* | 6.[0-5].*)
        # AF_XDP takes packets above a page from Linux 6.6 on. The programs load.
        output=$(timeout 150 sumac-lab run --workers 2 --elements 1000 --mtu 9000 --topology one-arm 2>&1)
        case $output in
            *"need Linux 6.6"*) result "$jumbo" ok "refused, and says which kernel" ;;
            *) echo "$output" | tail -n 20; result "$jumbo" failed "$(echo "$output" | tail -n 2)" ;;
        esac ;;
    *) lab "$jumbo" --mtu 9000 --topology one-arm ;;
esac
