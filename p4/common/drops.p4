// The drop simulator (SwitchML, section 5): loses packets of a job on purpose, and counts them.

control Drops(inout headers_t hdr, inout metadata_t meta) {
    bit<32> part = 0;
    bit<32> roll;
    RANDOM(bit<32>, dice)

    // In parts of 2^32.
    action drop_arriving(bit<32> arriving) {
        part = arriving;
    }
    table drops {
        key = { hdr.sumac.job : exact @name("job"); }
        actions = { drop_arriving; @defaultonly NoAction; }
        default_action = NoAction;
        size = JOBS;
    }

    apply {
        drops.apply();
        DRAW(bit<32>, dice, roll);
        part = part |-| roll;
        if (part != 0) {
            meta.is_injected = 1;
        }
    }
}
