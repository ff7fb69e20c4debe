// Shared slots: the chunk that a slot refused last. Its later packets are refused too, also when the slot has become free.

control Refused(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot, in bit<1> notes) {
    bit<32> refused_owner = 0;
    bit<32> refused_chunk = 0;
    bit<32> behind;

    REGISTER(bit<32>, refused_owners, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, refused_owners, look_refused_owner, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, refused_owners, set_refused_owner, result = value; value = meta.owner;)
    REGISTER(bit<32>, refused_chunks, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, refused_chunks, look_refused_chunk, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, refused_chunks, set_refused_chunk, result = value; value = hdr.sumac.seq;)

    apply {
        if (notes == 1) {
            EXECUTE(set_refused_owner, meta.slot, refused_owner);
            EXECUTE(set_refused_chunk, meta.slot, refused_chunk);
        } else {
            EXECUTE(look_refused_owner, meta.slot, refused_owner);
            EXECUTE(look_refused_chunk, meta.slot, refused_chunk);
        }
        // wire's REFUSED_CHUNKS: 2^14.
        behind = refused_chunk - hdr.sumac.seq;
        if (refused_owner == meta.owner && behind[31:14] == 0) {
            slot.has_refused = 1;
        }
    }
}
