// The addresses of packets that leave, and their drop simulator.

// Writes the addresses of the destination into a packet that leaves.
control Addresses(inout headers_t hdr, in bit<16> shard, in bit<16> destination) {
    action set_addresses(bit<48> dst_mac, bit<48> src_mac, bit<32> dst_ip, bit<32> src_ip, bit<16> port) {
        hdr.ethernet.dst = dst_mac;
        hdr.ethernet.src = src_mac;
        hdr.ipv4.dst = dst_ip;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.ttl = 64;
        // The request's port is that of its shard, and so is the answer's.
        hdr.udp.src_port = shard + BASE_PORT;
        hdr.udp.dst_port = shard + port;
        // A switch cannot sum what it does not parse: no checksum (RFC 768).
        hdr.udp.checksum = 0;
    }
    table addresses {
        key = { hdr.sumac.job : exact @name("job"); destination : exact @name("destination"); }
        actions = { set_addresses; @defaultonly NoAction; }
        default_action = NoAction;
        size = WAYS;
    }

    apply {
        addresses.apply();
    }
}

// The drop simulator for packets that leave; of a result, each worker's copy for itself.
control CopyDrops(inout headers_t hdr, out bit<1> is_dropped) {
    bit<32> part = 0;
    bit<32> roll;
    RANDOM(bit<32>, dice)

    // In parts of 2^32.
    action drop_leaving(bit<32> leaving) {
        part = leaving;
    }
    table copy_drops {
        key = { hdr.sumac.job : exact @name("job"); }
        actions = { drop_leaving; @defaultonly NoAction; }
        default_action = NoAction;
        size = JOBS;
    }

    apply {
        copy_drops.apply();
        DRAW(bit<32>, dice, roll);
        part = part |-| roll;
        is_dropped = 0;
        if (part != 0) {
            is_dropped = 1;
        }
    }
}

// Of packets that leave for `destination`.
control Leaving(inout headers_t hdr, in bit<16> shard, in bit<16> destination, out bit<1> is_dropped) {
    bit<6> reason = REASON_SENT;

    CopyDrops() copy_drops;
    Addresses() addresses;
    // By job and reason: copies that were sent, and those that were dropped on purpose.
    COUNTER(egress_reasons, JOBS * 64)

    apply {
        copy_drops.apply(hdr, is_dropped);
        if (is_dropped == 1) {
            reason = REASON_INJECTED_DROP;
        }
        COUNT(egress_reasons, hdr.sumac.job[9:0] ++ reason);
        addresses.apply(hdr, shard, destination);
    }
}
