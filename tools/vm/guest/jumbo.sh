# Frames of 9000 bytes, which come in several buffers where the driver has buffers of a page or less.
while read -r driver nic0 nic1; do
    connect "$nic0" "$nic1" </dev/null
    for mode in zerocopy auto copy generic udp; do
        run "$driver" "$mode" "$nic0" "$nic1" </dev/null
    done
    disconnect "$nic0" "$nic1" </dev/null
done </drivers
