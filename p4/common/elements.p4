// Static slots: how many elements a version's chunk has, and whether they are summed or the largest is kept. 0: no elements yet.

control Elements(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    bit<16> mine;
    bit<16> held = 0;

    REGISTER(bit<16>, sizes, VERSIONS)
    REGISTER_ACTION(bit<16>, bit<16>, sizes, look_size, result = value;)
    REGISTER_ACTION(bit<16>, bit<16>, sizes, set_size, result = value; value = mine;)
    REGISTER_ACTION(bit<16>, bit<16>, sizes, begin_size, result = value; if (value == 0) { value = mine; })

    apply {
        mine = hdr.sumac.maximum ++ hdr.sumac.elements[14:0];
        if (slot.is_agreeing == 1 || (slot.is_new == 1 && slot.takes == 1)) {
            if (slot.is_agreeing == 1 || hdr.sumac.exponent_round == 1) {
                mine = 0;
            }
            EXECUTE(set_size, meta.place, held);
            slot.is_empty = 1;
        } else if (slot.takes == 1 && slot.is_same == 1 && slot.is_alike == 1 && slot.is_round == 0 && hdr.sumac.exponent_round == 0) {
            EXECUTE(begin_size, meta.place, held);
            if (held == 0) { slot.is_empty = 1; }
        } else {
            EXECUTE(look_size, meta.place, held);
            if (held == 0) { slot.is_empty = 1; }
        }
        slot.is_other_kind = held[15:15] ^ hdr.sumac.maximum;
        if (held[14:0] == hdr.sumac.elements[14:0]) {
            slot.is_same_size = 1;
        }
    }
}
