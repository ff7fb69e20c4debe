// Static slots: the state of a version's chunk, and the signature of its operation.

control VersionState(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    // STATE_* bits, as wire's.
    REGISTER(bit<8>, states, VERSIONS)
    REGISTER_ACTION(bit<8>, bit<8>, states, look_state, result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, states, set_state, value = slot.state; result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, states, mark_state, value = value | slot.state; result = value;)

    REGISTER(bit<32>, signatures, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<32>, signatures, look_signature, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, signatures, set_signature, value = hdr.sumac.tensor; result = value;)

    apply {
        if (slot.is_concluding == 1) {
            EXECUTE(mark_state, meta.place, slot.state);
        } else if (slot.is_agreeing == 1) {
            EXECUTE(set_state, meta.place, slot.state);
        } else if (slot.is_new == 1 && slot.takes == 1) {
            slot.state = 0;
            if (hdr.sumac.exponent_round == 1) {
                slot.state = STATE_ROUND;
            }
            EXECUTE(set_state, meta.place, slot.state);
            EXECUTE(set_signature, meta.place, meta.tensor);
        } else {
            EXECUTE(look_state, meta.place, slot.state);
            EXECUTE(look_signature, meta.place, meta.tensor);
        }
        if (meta.tensor == hdr.sumac.tensor) {
            slot.is_alike = 1;
        }
    }
}
