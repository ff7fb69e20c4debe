// Shared slots: the senders whose values the slot holds.

control Bitmap(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    bit<32> before;

    REGISTER(bit<32>, bitmaps, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, bitmaps, look_bitmap, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, bitmaps, set_bitmap, result = value; value = meta.bit_;)
    REGISTER_ACTION(bit<32>, bit<32>, bitmaps, add_bitmap, result = value; value = value | meta.bit_;)

    apply {
        if (slot.is_taken == 1) {
            EXECUTE(set_bitmap, meta.slot, before);
            before = 0;
        } else if (slot.merges == 1) {
            EXECUTE(add_bitmap, meta.slot, before);
        } else {
            EXECUTE(look_bitmap, meta.slot, before);
        }
        meta.bitmap = before | meta.bit_;
        if (before == meta.bitmap) {
            slot.is_in = 1;
        }
        if (meta.bitmap == meta.all) {
            slot.completes = 1;
        }
        if (hdr.bridge.pass != PASS_NONE) {
            meta.bitmap = before;
        }
    }
}
