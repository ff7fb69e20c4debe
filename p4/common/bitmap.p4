// Shared slots: the senders whose values the slot holds.

control Bitmap(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    bit<32> others;

    REGISTER(bit<32>, bitmaps, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, bitmaps, look_bitmap, result = value;)
    REGISTER_UPDATE(bit<32>, bitmaps, set_bitmap, value = meta.bit_;)
    REGISTER_ACTION(bit<32>, bit<32>, bitmaps, add_bitmap, result = value; value = value | meta.bit_;)

    action look() {
        EXECUTE(look_bitmap, meta.slot, slot.before);
    }
    action begin() {
        EXECUTE_UPDATE(set_bitmap, meta.slot);
    }
    action add() {
        EXECUTE(add_bitmap, meta.slot, slot.before);
        slot.merges = 1;
    }
    // At the second level a bit is a whole rack: what is sent again there cannot be merged.
    table bitmap_orders {
        key = {
            slot.role : ternary;
            slot.is_taken : ternary;
            slot.holds : ternary;
            slot.is_kind : ternary;
            slot.is_alike : ternary;
            hdr.sumac.raw_float : ternary;
            hdr.sumac.level : ternary;
        }
        actions = { look; begin; add; NoAction; }
        const default_action = NoAction;
        const entries = {
            (_, 1, _, _, _, _, _) : begin();
            (ROLE_OFFER, _, 1, 1, 1, 0, _) : add();
            (ROLE_AGAIN, _, 1, 1, 1, 0, 0) : add();
            (_, _, 1, _, _, _, _) : look();
        }
    }

    action prepare() {
        others = meta.all ^ meta.bit_;
    }
    action of_workers() {
        meta.bitmap = slot.before | meta.bit_;
        slot.present = slot.before & meta.bit_;
        slot.missing = others & ~slot.before;
        slot.changed = slot.before ^ hdr.sumac.bitmap_0;
    }
    action of_racks() {
        meta.bitmap = slot.before | meta.bit_;
        slot.present = slot.before & meta.bit_;
        slot.missing = others & ~slot.before;
        slot.changed = slot.before ^ hdr.sumac.bitmap_1;
    }

    apply {
        prepare();
        bitmap_orders.apply();
        if (meta.is_root == 1) {
            of_racks();
        } else {
            of_workers();
        }
    }
}
