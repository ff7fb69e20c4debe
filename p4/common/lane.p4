// Static slots: the chunk that the next completed slot of a lane takes ("chunk reassignment", docs/protocol.md).

control Lane(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    bit<32> second;
    // Owner, and the number drawn last.
    PAIR_REGISTER(lanes_next, LANES)
    PAIR_ACTION(bit<32>, lanes_next, draw_next,
        if (value.lo != meta.owner) { value.lo = meta.owner; value.hi = second; } else { value.hi = value.hi + 1; }
        result = value.hi;)

    apply {
        // A lane's slots take their first two chunks by number.
        second = meta.lane_slots << 1;
        slot.number = hdr.sumac.seq + second;
        if (meta.reassigns == 1) {
            EXECUTE(draw_next, meta.lane, slot.number);
        }
    }
}
