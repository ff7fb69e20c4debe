// Shared slots: who has a slot, and since when nobody has added to it (ATP, section 3.5 and 3.7).

control Tenancy(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    bit<32> last = 0;
    bit<32> tenant = 0;
    bit<32> age;
    bit<32> holder;
    bit<32> held;
    bit<32> owner;
    bit<32> chunk;

    // By slot: the tick of the last contribution, and the digest of the chunk.
    PAIR_REGISTER(stamps, SHARED_SLOTS)
    PAIR_ACTION(bit<32>, stamps, take_stamp,
        result = value.lo;
        if (value.hi == slot.digest || (int<32>) (value.lo - meta.now + SLOT_TIMEOUT) <= 0) { value.lo = meta.now; value.hi = slot.digest; })
    PAIR_ACTION(bit<32>, stamps, touch_stamp,
        result = value.lo;
        if (value.hi == slot.digest) { value.lo = meta.now; })
    PAIR_ACTION(bit<32>, stamps, look_stamp, result = value.lo;)
    // Frees it of this chunk. One that is free already gets a new stamp, before ticks wrap.
    PAIR_ACTION(bit<32>, stamps, free_stamp,
        result = value.hi;
        if (value.hi == slot.digest || value.hi == 0) { value.lo = meta.now - SLOT_TIMEOUT; value.hi = 0; })

    REGISTER(bit<32>, shared_holders, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, shared_holders, look_shared_holder, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, shared_holders, set_shared_holder, result = value; value = owner;)
    REGISTER(bit<32>, shared_chunks, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, shared_chunks, look_shared_chunk, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, shared_chunks, set_shared_chunk, result = value; value = chunk;)

    apply {
        owner = meta.owner;
        chunk = hdr.sumac.seq;
        if (slot.frees == 1) {
            EXECUTE(free_stamp, meta.slot, tenant);
            owner = 0;
            chunk = 0;
        } else if (slot.may_take == 1) {
            EXECUTE(take_stamp, meta.slot, last);
        } else if (slot.touches == 1) {
            EXECUTE(touch_stamp, meta.slot, last);
        } else {
            EXECUTE(look_stamp, meta.slot, last);
        }
        age = last - meta.now + SLOT_TIMEOUT;
        if (slot.frees == 0 && (age == 0 || age[31:31] == 1)) {
            slot.is_aged = 1;
        }
        if ((slot.frees == 1 && tenant == slot.digest) || (slot.may_take == 1 && slot.is_aged == 1)) {
            EXECUTE(set_shared_holder, meta.slot, holder);
            EXECUTE(set_shared_chunk, meta.slot, held);
        } else {
            EXECUTE(look_shared_holder, meta.slot, holder);
            EXECUTE(look_shared_chunk, meta.slot, held);
        }
        if (holder == 0) {
            slot.was_free = 1;
        } else if (holder == meta.owner && held == hdr.sumac.seq) {
            slot.holds = 1;
        }
        slot.is_taken = slot.may_take & slot.is_aged & ~slot.holds;
    }
}
