// Static slots: what a result has from all contributions: flags, the chunk's exponent and the largest of the slot's next chunk.

control Merged(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    bit<8> mine;
    bit<8> merged = 0;

    // Overflow, ECN echo, not finite.
    REGISTER(bit<8>, merged_flags, VERSIONS)
    REGISTER_ACTION(bit<8>, bit<8>, merged_flags, look_flags, result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, merged_flags, set_flags, value = mine; result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, merged_flags, merge_flags, value = value | mine; result = value;)

    SIGNED_REGISTER(8, exponents, VERSIONS)
    SIGNED_ACTION(8, exponents, look_exponent, result = value;)
    SIGNED_ACTION(8, exponents, set_exponent, value = slot.exponent; result = value;)
    SIGNED_ACTION(8, exponents, merge_exponent, if (value < slot.exponent) { value = slot.exponent; } result = value;)

    SIGNED_REGISTER(8, next_exponents, VERSIONS)
    SIGNED_ACTION(8, next_exponents, look_next_exponent, result = value;)
    SIGNED_ACTION(8, next_exponents, set_next_exponent, value = hdr.sumac.next_exponent; result = value;)
    SIGNED_ACTION(8, next_exponents, merge_next_exponent,
        if (value < hdr.sumac.next_exponent) { value = hdr.sumac.next_exponent; }
        result = value;)

    apply {
        mine = 5w0 ++ hdr.sumac.overflow ++ hdr.sumac.ecn_echo ++ hdr.sumac.not_finite;
        slot.exponent = hdr.sumac.next_exponent;
        if (hdr.sumac.exponent_round == 1) {
            mine = mine & 2;
        }
        if (slot.is_agreeing == 1) {
            // The root's exponent; without a root it is the version's own.
            slot.exponent = hdr.sumac.exponent;
            EXECUTE(set_flags, meta.place, merged);
            EXECUTE(set_exponent, meta.place, meta.exponent);
        } else if (slot.is_concluding == 1) {
            EXECUTE(set_flags, meta.place, merged);
            EXECUTE(set_next_exponent, meta.place, meta.next_exponent);
        } else if (slot.is_added == 1 && slot.is_first == 1) {
            EXECUTE(set_flags, meta.place, merged);
            if (hdr.sumac.exponent_round == 1) {
                EXECUTE(set_exponent, meta.place, meta.exponent);
            } else {
                EXECUTE(set_next_exponent, meta.place, meta.next_exponent);
            }
        } else if (slot.is_added == 1) {
            EXECUTE(merge_flags, meta.place, merged);
            if (hdr.sumac.exponent_round == 1) {
                EXECUTE(merge_exponent, meta.place, meta.exponent);
            } else {
                EXECUTE(merge_next_exponent, meta.place, meta.next_exponent);
            }
        } else {
            EXECUTE(look_flags, meta.place, merged);
            EXECUTE(look_exponent, meta.place, meta.exponent);
            EXECUTE(look_next_exponent, meta.place, meta.next_exponent);
        }
        meta.flags = merged[2:0] ++ hdr.sumac.maximum;
    }
}
