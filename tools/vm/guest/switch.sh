# A switch in the place of the hub: a bridge with a port for each worker and one for the aggregator.
ip link add switch type bridge
# Its own interface would answer for the address of agg0, which is in this namespace.
ip link set switch arp off up
for nic in agg0 w0 w1; do
    ip link add "$nic" type veth peer name "port-$nic"
    # Checksums are in the packets, where programs and sockets of AF_XDP look for them.
    ethtool -K "$nic" tx off >/dev/null
    # A veth takes redirected frames where its peer polls, which GRO asks for.
    ethtool -K "port-$nic" gro on >/dev/null
    ip link set "port-$nic" master switch
    ip link set "port-$nic" up
done
