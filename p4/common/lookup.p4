// Looks up job, sender and place by the packet's fields, in one stage.

control Lookup(inout headers_t hdr, inout metadata_t meta) {
    action set_job(
        bit<1> dynamic, bit<1> child, bit<1> root, bit<1> reassigns, bit<16> epoch, bit<32> all, bit<8> world,
        bit<16> elements, bit<16> contributors, bit<32> rack_bit, bit<8> racks, bit<64> result_token, bit<1> is_bounded) {
        meta.is_known = 1;
        meta.is_dynamic = dynamic;
        meta.is_child = child;
        meta.is_root = root;
        meta.reassigns = reassigns;
        meta.is_bounded = is_bounded;
        meta.other_epoch = hdr.sumac.epoch ^ epoch;
        meta.most_elements = elements;
        meta.all = all;
        meta.world = world;
        meta.contributors = contributors;
        meta.rack_bit = rack_bit;
        meta.racks = racks;
        meta.result_token = result_token;
    }
    // A removed job, whose former members are told.
    action set_former_job(bit<16> epoch, bit<64> result_token) {
        meta.is_former = 1;
        meta.other_epoch = hdr.sumac.epoch ^ epoch;
        meta.result_token = result_token;
    }
    table jobs {
        key = { hdr.sumac.job : exact @name("job"); }
        actions = { set_job; set_former_job; @defaultonly NoAction; }
        default_action = NoAction;
        size = JOBS;
    }

    action set_token(bit<1> is_result) {
        meta.has_token = ~is_result;
        meta.has_result_token = is_result;
    }
    table tokens {
        key = { hdr.sumac.job : exact @name("job"); hdr.sumac.token : exact @name("token"); }
        actions = { set_token; @defaultonly NoAction; }
        default_action = NoAction;
        size = TOKENS;
    }

    action set_sender(bit<16> destination, bit<32> bit_) {
        meta.is_sender = 1;
        meta.sender = destination;
        meta.bit_ = bit_;
    }
    table senders {
        key = {
            hdr.sumac.job : exact @name("job");
            hdr.sumac.level : ternary @name("level");
            hdr.sumac.fan_in_0 : ternary @name("fan_in_0");
            hdr.sumac.fan_in_1 : ternary @name("fan_in_1");
            hdr.sumac.bitmap_0 : ternary @name("bitmap_0");
            hdr.sumac.bitmap_1 : ternary @name("bitmap_1");
        }
        actions = { set_sender; @defaultonly NoAction; }
        default_action = NoAction;
        size = SENDERS;
    }

    action bound() {
        meta.is_bound = 1;
    }
    table sources {
        key = {
            hdr.sumac.job : exact @name("job");
            hdr.ipv4.src : exact @name("src");
            hdr.sumac.bitmap_0 : ternary @name("bitmap_0");
            hdr.sumac.bitmap_1 : ternary @name("bitmap_1");
        }
        actions = { bound; @defaultonly NoAction; }
        default_action = NoAction;
        size = MEMBERS;
    }

    action ours() {
        meta.is_side = 1;
    }
    table sides {
        key = {
            hdr.sumac.job : exact @name("job");
            hdr.ipv4.src : exact @name("src");
            hdr.ipv4.dst : exact @name("dst");
        }
        actions = { ours; @defaultonly NoAction; }
        default_action = NoAction;
        size = MEMBERS;
    }

    action set_receiver(bit<16> destination) {
        meta.receiver = destination;
    }
    table receivers {
        key = {
            hdr.sumac.job : exact @name("job");
            hdr.sumac.bitmap_0 : ternary @name("bitmap_0");
            hdr.sumac.bitmap_1 : ternary @name("bitmap_1");
        }
        actions = { set_receiver; @defaultonly NoAction; }
        default_action = NoAction;
        size = MEMBERS;
    }

    action set_parent(bit<16> destination) {
        meta.parent = destination;
    }
    table parents {
        key = { hdr.sumac.job : exact @name("job"); meta.shard : exact @name("shard"); }
        actions = { set_parent; @defaultonly NoAction; }
        default_action = NoAction;
        size = UPLINKS;
    }

    action from_parent() {
        meta.is_parent_source = 1;
    }
    table parent_sources {
        key = {
            hdr.sumac.job : exact @name("job");
            meta.shard : exact @name("shard");
            hdr.ipv4.src : exact @name("src");
        }
        actions = { from_parent; @defaultonly NoAction; }
        default_action = NoAction;
        size = UPLINKS;
    }

    action set_uplink() {
        meta.is_uplink = 1;
    }
    action set_past() {
        meta.is_past = 1;
    }
    table uplinks {
        key = {
            hdr.sumac.job : exact @name("job");
            meta.shard : exact @name("shard");
            hdr.ipv4.dst : exact @name("dst");
        }
        actions = { set_uplink; set_past; @defaultonly NoAction; }
        default_action = NoAction;
        // The aggregator's address, and the parent's own.
        size = UPLINKS * 2;
    }

    action set_static(bit<16> first, bit<32> mask, bit<32> lane_slots, bit<16> lane) {
        meta.is_placed = 1;
        meta.slot_in_lane = hdr.sumac.slot & mask;
        meta.short_slot = meta.short_slot & mask[15:0];
        meta.first = first;
        meta.lane_slots = lane_slots;
        meta.lane = lane;
    }
    action set_shared(bit<16> first) {
        meta.is_placed = 1;
        meta.slot_in_lane = hdr.sumac.slot;
        meta.first = first;
    }
    action set_no_slot() {
        meta.is_placed = 1;
        meta.has_no_slot = 1;
    }
    table lanes {
        key = {
            hdr.sumac.job : exact @name("job");
            meta.shard : exact @name("shard");
            hdr.sumac.slot : ternary @name("slot");
            hdr.sumac.lane : ternary @name("lane");
        }
        actions = { set_static; set_shared; set_no_slot; @defaultonly NoAction; }
        default_action = NoAction;
        size = PLACED;
    }

    // A switch moves half of a word through a hash only.
    action halve() {
        @in_hash { meta.short_slot = hdr.sumac.slot[15:0]; }
    }
    // Not in set_job: a switch subtracts fields only.
    action compare_elements() {
        meta.too_long = hdr.sumac.elements |-| meta.most_elements;
    }

    apply {
        jobs.apply();
        compare_elements();
        tokens.apply();
        senders.apply();
        sources.apply();
        sides.apply();
        receivers.apply();
        parents.apply();
        parent_sources.apply();
        uplinks.apply();
        halve();
        lanes.apply();
    }
}
