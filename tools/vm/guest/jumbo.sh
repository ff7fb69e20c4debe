# Frames of 9000 bytes, which come in several buffers where the driver has buffers of a page or less.
while read -r driver nic0 nic1; do
    connect "$nic0" "$nic1" </dev/null
    # QEMU's igb takes UDP segments for fragments of one packet.
    inside 0 ethtool -K "$nic0" tx-udp-segmentation off </dev/null
    inside 1 ethtool -K "$nic1" tx-udp-segmentation off </dev/null
    for mode in zerocopy auto copy generic udp; do
        run "$driver" "$mode" "$nic0" "$nic1" </dev/null
    done
    disconnect "$nic0" "$nic1" </dev/null
done </drivers
