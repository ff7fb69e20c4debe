// Static slots: which version may take a new chunk, and which one.
//
// The versions of a slot alternate, and a version takes a new chunk only when the other is final (docs/protocol.md, "Slot"). So the
// packet that completes a version writes down, in its second pass, whose turn it is, and the chunk that takes the version next.

control Turn(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    // By slot: owner, and the version that may take a new chunk.
    PAIR_REGISTER(turns, STATIC_SLOTS)
    PAIR_ACTION(bit<32>, turns, look_turn,
        if (value.lo != meta.owner) { value.lo = meta.owner; value.hi = 0; }
        result = value.hi;)
    PAIR_UPDATE(turns, give_turn, value.lo = meta.owner; value.hi = slot.turn;)

    // By version: owner, and the chunk that takes it next. Of another owner: none, so not the packet's.
    PAIR_REGISTER(next_chunks, VERSIONS)
    PAIR_ACTION(bit<32>, next_chunks, look_next,
        if (value.lo != meta.owner) { value.hi = ~slot.number; }
        result = value.hi;)
    // By the first chunk of the version.
    PAIR_ACTION(bit<32>, next_chunks, begin_next,
        if (value.lo != meta.owner) { value.lo = meta.owner; value.hi = slot.number; }
        result = value.hi;)
    PAIR_UPDATE(next_chunks, give_next, value.lo = meta.owner; value.hi = slot.number;)

    apply {
        if (slot.is_concluding == 1) {
            EXECUTE_UPDATE(give_turn, meta.slot);
            EXECUTE_UPDATE(give_next, meta.place);
        } else {
            EXECUTE(look_turn, meta.slot, slot.turn);
            if (slot.is_first_chunk == 1) {
                EXECUTE(begin_next, meta.place, slot.next);
            } else {
                EXECUTE(look_next, meta.place, slot.next);
            }
        }
    }
}
