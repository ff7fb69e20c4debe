// The ports of packets that leave: towards a worker or parent of its job, and everything that is not the aggregator's by its MAC address.

control Ways(inout headers_t hdr, inout metadata_t meta) {
    action set_way(bit<9> port) {
        meta.port = port;
        meta.has_port = 1;
    }
    table ways {
        key = { hdr.sumac.job : exact @name("job"); hdr.bridge.destination : exact @name("destination"); }
        actions = { set_way; @defaultonly NoAction; }
        default_action = NoAction;
        size = WAYS;
    }

    apply {
        if (hdr.bridge.destination == DEST_ALL) {
            meta.group = hdr.sumac.job;
        } else {
            ways.apply();
        }
    }
}

// All that is not Sumac's.
control Hosts(inout headers_t hdr, inout metadata_t meta) {
    action forward(bit<9> port) {
        meta.port = port;
        meta.has_port = 1;
    }
    table hosts {
        key = { hdr.ethernet.dst : exact @name("mac"); }
        actions = { forward; @defaultonly NoAction; }
        default_action = NoAction;
        size = HOSTS;
    }

    apply {
        hosts.apply();
    }
}
