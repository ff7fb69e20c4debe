// Shared slots: whether a packet's values may be added to those in the slot.

control Likeness(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    bit<32> mine;
    bit<32> kind;
    bit<32> signature;

    // Exponent, maximum, level and number of elements.
    REGISTER(bit<32>, kinds, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, kinds, look_kind, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, kinds, set_kind, value = mine; result = value;)
    REGISTER(bit<32>, shared_signatures, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, shared_signatures, look_shared_signature, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, shared_signatures, set_shared_signature, value = hdr.sumac.tensor; result = value;)

    apply {
        mine = (bit<8>) hdr.sumac.exponent ++ 6w0 ++ hdr.sumac.maximum ++ hdr.sumac.level ++ hdr.sumac.elements;
        if (slot.is_taken == 1) {
            EXECUTE(set_kind, meta.slot, kind);
            EXECUTE(set_shared_signature, meta.slot, signature);
        } else {
            EXECUTE(look_kind, meta.slot, kind);
            EXECUTE(look_shared_signature, meta.slot, signature);
        }
        if (kind == mine && signature == hdr.sumac.tensor) {
            slot.is_alike = 1;
        }
    }
}
