// Static slots: the senders whose values, or exponents, a version does not have yet.

control Seen(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    bit<32> missing = 0;
    bit<32> others;

    REGISTER(bit<32>, missing_senders, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<32>, missing_senders, look_missing, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, missing_senders, set_missing, result = value; value = others;)
    REGISTER_ACTION(bit<32>, bit<32>, missing_senders, clear_missing, result = value; value = value & others;)

    apply {
        others = meta.all ^ meta.bit_;
        if (slot.is_agreeing == 1) {
            others = meta.all;
            EXECUTE(set_missing, meta.place, missing);
        } else if (slot.is_taken == 1) {
            if (slot.is_new == 1) {
                EXECUTE(set_missing, meta.place, missing);
                missing = meta.all;
            } else {
                EXECUTE(clear_missing, meta.place, missing);
            }
        } else {
            EXECUTE(look_missing, meta.place, missing);
        }
        if (missing == 0) {
            slot.is_complete = 1;
        }
        if (missing == meta.bit_) {
            slot.completes = 1;
        }
        if (missing & meta.bit_ == 0) {
            slot.is_in = 1;
        }
    }
}
