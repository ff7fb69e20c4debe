// Static slots: the chunk that a version holds.

control Chunk(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    bit<32> holder;
    bit<32> held;
    bit<32> behind;

    // By version: the owner, and the chunk.
    REGISTER(bit<32>, holders, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<32>, holders, look_holder, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, holders, take_holder, result = value; value = meta.owner;)
    REGISTER(bit<32>, chunks, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<32>, chunks, look_chunk, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, chunks, take_chunk, result = value; value = hdr.sumac.seq;)

    apply {
        if (slot.in_turn == 1 && slot.takes == 1) {
            EXECUTE(take_holder, meta.place, holder);
            EXECUTE(take_chunk, meta.place, held);
        } else {
            EXECUTE(look_holder, meta.place, holder);
            EXECUTE(look_chunk, meta.place, held);
        }
        behind = hdr.sumac.seq - held;
        if (holder == meta.owner) {
            if (behind == 0) {
                slot.is_same = 1;
            } else {
                slot.is_stale = behind[31:31];
            }
        }
        slot.is_new = slot.in_turn & ~slot.is_same;
    }
}
