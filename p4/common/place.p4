// The index of a packet's slot, and the chunk that the packet is about.

control Place(inout headers_t hdr, inout metadata_t meta) {
    bit<32> first_chunk;
    bit<32> second;

    // By lane: owner, and the number drawn last (docs/protocol.md, "chunk reassignment").
    PAIR_REGISTER(lanes_next, LANES)
    PAIR_ACTION(bit<32>, lanes_next, draw_next,
        if (value.lo != meta.owner) { value.lo = meta.owner; value.hi = second; } else { value.hi = value.hi + 1; }
        result = value.hi;)

    action find_slot() {
        meta.slot = meta.first + meta.short_slot;
        meta.owner = hdr.sumac.job ++ hdr.sumac.epoch;
        // A lane's slots take their first two chunks by number.
        second = meta.lane_slots << 1;
        first_chunk = hdr.sumac.seq - meta.slot_in_lane;
    }
    action version_0() {
        meta.place = meta.slot;
        meta.number = hdr.sumac.seq + second;
    }
    action version_1() {
        meta.place = meta.slot + STATIC_SLOTS;
        meta.number = hdr.sumac.seq + second;
        first_chunk = first_chunk - meta.lane_slots;
    }
    action draw() {
        EXECUTE(draw_next, meta.lane, meta.number);
    }
    action named() {
        meta.number = hdr.sumac.next_seq;
    }
    action own() {
        meta.number = hdr.sumac.seq;
    }
    // The number that the slot is about: in the pass that concludes a chunk, that of the chunk that takes the version next.
    table numbers {
        key = { hdr.bridge.pass : ternary; meta.reassigns : ternary; }
        actions = { draw; named; own; NoAction; }
        const default_action = own;
        const entries = {
            (PASS_CONCLUDE, 1) : draw();
            (PASS_CONCLUDE, _) : NoAction();
            (PASS_CONCLUDE_ROOTS, _) : named();
        }
    }
    action is_first() {
        meta.is_first_chunk = 1;
    }
    table first_chunks {
        key = { first_chunk : exact; }
        actions = { is_first; NoAction; }
        const default_action = NoAction;
        const entries = { 0 : is_first(); }
    }

    apply {
        find_slot();
        if (hdr.sumac.pool_version == 1) {
            version_1();
        } else {
            version_0();
        }
        numbers.apply();
        first_chunks.apply();
    }
}
