// Shared slots: what a sum has from all contributions: flags, the largest exponent of a later chunk, and what all senders have received.

control SharedMerged(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    bit<8> mine;
    bit<8> merged = 0;
    int<32> received = 0;
    bit<1> adds;

    // Overflow, ECN echo, not finite.
    REGISTER(bit<8>, shared_flags, SHARED_SLOTS)
    REGISTER_ACTION(bit<8>, bit<8>, shared_flags, set_shared_flags, value = mine; result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, shared_flags, merge_shared_flags, value = value | mine; result = value;)

    SIGNED_REGISTER(8, shared_next_exponents, SHARED_SLOTS)
    SIGNED_ACTION(8, shared_next_exponents, set_shared_next_exponent, value = hdr.sumac.next_exponent; result = value;)
    SIGNED_ACTION(8, shared_next_exponents, merge_shared_next_exponent,
        if (value < hdr.sumac.next_exponent) { value = hdr.sumac.next_exponent; }
        result = value;)

    SIGNED_REGISTER(32, received_by_all, SHARED_SLOTS)
    SIGNED_ACTION(32, received_by_all, set_received, value = (int<32>) hdr.sumac.received; result = value;)
    SIGNED_ACTION(32, received_by_all, merge_received,
        if (value - (int<32>) hdr.sumac.received > 0) { value = (int<32>) hdr.sumac.received; }
        result = value;)

    apply {
        mine = 5w0 ++ hdr.sumac.overflow ++ hdr.sumac.ecn_echo ++ hdr.sumac.not_finite;
        // A repeated packet adds its marks of congestion only.
        adds = slot.merges & (~slot.is_in | hdr.sumac.resend);
        if (slot.is_taken == 1) {
            EXECUTE(set_shared_flags, meta.slot, merged);
            EXECUTE(set_shared_next_exponent, meta.slot, meta.next_exponent);
            EXECUTE(set_received, meta.slot, received);
        } else if (adds == 1) {
            EXECUTE(merge_shared_flags, meta.slot, merged);
            EXECUTE(merge_shared_next_exponent, meta.slot, meta.next_exponent);
            EXECUTE(merge_received, meta.slot, received);
        } else if (slot.merges == 1) {
            EXECUTE(merge_shared_flags, meta.slot, merged);
        }
        meta.flags = merged << 1;
        meta.received = (bit<32>) received;
    }
}
