// Chunks of static jobs with more than 64 elements: blocks of 64, and what is left in the last one.
//
// A packet has the headers of one block. Its first pass decides about all of them. Each turn through the slots writes the block in front and
// takes it off the packet. One that leaves with the values then takes two turns for each block, from the last to the first, which put both
// halves in front. A version that is taken meanwhile is found out in each of them.
//
// All turns of a packet come in the order of the decisions, so the last contribution writes last. A packet that the switch drops between two
// turns leaves out a part of its values, and nothing may repeat the others: its chunk never leaves the switch.
//
// A flush that has claimed its version has written its own values before. It takes as many turns as the blocks would, without any:
// contributions that were decided just before it write theirs meanwhile.
#ifndef BLOCKS_P4
#define BLOCKS_P4

// After the decision, and instead of `later_passes`.
control Blocks(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    bit<32> unwritten = 0;

    // By version: the senders of which not all blocks are written, without the last one, which concludes the chunk itself; all, while a root's
    // result is written.
    REGISTER(bit<32>, unwritten_senders, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<32>, unwritten_senders, look_unwritten, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, unwritten_senders, set_unwritten, value = meta.all; result = 0;)
    REGISTER_ACTION(bit<32>, bit<32>, unwritten_senders, set_none_unwritten, value = 0; result = 0;)
    REGISTER_ACTION(bit<32>, bit<32>, unwritten_senders, clear_unwritten, value = value & slot.others; result = 0;)

    action look() {
        EXECUTE(look_unwritten, meta.place, unwritten);
    }
    action begin() {
        EXECUTE(set_unwritten, meta.place, unwritten);
    }
    action begin_alone() {
        EXECUTE(set_none_unwritten, meta.place, unwritten);
    }
    action clear() {
        EXECUTE(clear_unwritten, meta.place, unwritten);
    }
    table unwritten_orders {
        key = {
            meta.is_first_pass : ternary;
            hdr.bridge.pass : ternary;
            hdr.bridge.operation : ternary;
            hdr.bridge.then : ternary;
            hdr.bridge.number : ternary;
            hdr.bridge.last : ternary;
        }
        actions = { look; begin; begin_alone; clear; NoAction; }
        const default_action = NoAction;
        const entries = {
            // first pass operation then number last
            // A root's result takes the place of the rack's sum, which may not be read meanwhile.
            (1, PASS_CONCLUDE_ROOTS, _, _, _, _) : begin();
            (_, PASS_CONCLUDE_ROOTS, _, _, _, _) : begin_alone();
            (1, PASS_END, OPERATION_STORE, _, _, _) : begin();
            (1, PASS_GRANT, OPERATION_STORE, _, _, _) : begin();
            (1, _, OPERATION_STORE, _, _, _) : begin_alone();
            (1, PASS_CONCLUDE, _, _, _, _) : clear();
            (1, PASS_FETCH, OPERATION_ADD, _, _, _) : clear();
            (1, PASS_FETCH, OPERATION_MAXIMUM, _, _, _) : clear();
            (_, PASS_WRITE, _, PASS_END, 1, 1) : clear();
            (_, PASS_WRITE, _, PASS_END, 2, 2) : clear();
            (_, PASS_WRITE, _, PASS_END, 3, 3) : clear();
            (_, PASS_WRITE, _, PASS_GRANT, 1, 1) : clear();
            (_, PASS_WRITE, _, PASS_GRANT, 2, 2) : clear();
            (_, PASS_WRITE, _, PASS_GRANT, 3, 3) : clear();
            (_, PASS_CONCLUDE, _, _, _, _) : look();
            (_, PASS_FETCH, _, _, _, _) : look();
            (_, PASS_READ, _, _, _, _) : look();
        }
    }

    action write(bit<8> then) {
        hdr.bridge.pass = PASS_WRITE;
        hdr.bridge.block = BLOCK_FULL;
        hdr.bridge.then = then;
    }
    action write_roots() {
        write(PASS_CONCLUDE_ROOTS);
        hdr.bridge.operation = OPERATION_STORE;
    }
    action take_off(bit<8> then) {
        write(then);
        hdr.bridge.operation = OPERATION_NONE;
    }
    action end() {
        hdr.bridge.operation = OPERATION_NONE;
        hdr.bridge.pass = PASS_END;
    }
    action read_last() {
        hdr.bridge.operation = OPERATION_READ_FIRST;
        hdr.bridge.pass = PASS_READ;
    }
    action conclude() {
        hdr.sumac.next_seq = meta.number;
        read_last();
    }
    action reply() {
        hdr.sumac.next_seq = slot.next;
        read_last();
    }
    action read_second() {
        hdr.bridge.operation = OPERATION_READ_SECOND;
    }
    action read_second_of_first() {
        hdr.bridge.operation = OPERATION_READ_SECOND;
        hdr.bridge.pass = PASS_SEND;
    }
    action read_before() {
        hdr.bridge.operation = OPERATION_READ_FIRST;
        hdr.bridge.number = hdr.bridge.number - 1;
        hdr.bridge.cell = hdr.bridge.cell - 1;
    }
    table turns_of_blocks {
        key = {
            meta.is_first_pass : ternary;
            hdr.bridge.pass : ternary;
            hdr.bridge.operation : ternary;
            slot.is_same : ternary;
            hdr.sumac.kind : ternary;
            hdr.bridge.number : ternary;
            unwritten : ternary;
            slot.state : ternary;
        }
        actions = { write; write_roots; take_off; end; conclude; reply; read_last; read_second; read_second_of_first; read_before; NoAction; }
        const default_action = NoAction;
        const entries = {
            // first pass operation same kind number unwritten state
            (1, PASS_END, OPERATION_NONE, _, _, _, _, _) : NoAction();
            (1, PASS_END, _, _, _, _, _, _) : write(PASS_END);
            (1, PASS_GRANT, _, _, _, _, _, _) : write(PASS_GRANT);
            (1, PASS_GRANT_HELD, _, _, _, _, _, _) : take_off(PASS_GRANT_HELD);
            (1, PASS_CONCLUDE, _, _, _, _, _, _) : write(PASS_CONCLUDE);
            (1, PASS_CONCLUDE_ROOTS, _, _, _, _, _, _) : write_roots();
            (1, PASS_FETCH, OPERATION_READ_FIRST, _, _, _, _, _) : take_off(PASS_FETCH);
            (1, PASS_FETCH, _, _, _, _, _, _) : write(PASS_FETCH);
            (1, PASS_SEND, _, _, _, _, _, _) : write(PASS_FETCH);
            (1, _, _, _, _, _, _, _) : NoAction();
            // The version has another chunk by now.
            (_, PASS_WRITE, _, 0, _, _, _, _) : end();
            (_, PASS_FETCH, _, 0, _, _, _, _) : end();
            (_, PASS_READ, _, 0, _, _, _, _) : end();
            (_, PASS_CONCLUDE_ROOTS, _, _, _, _, _, _) : conclude();
            (_, PASS_CONCLUDE, _, _, _, _, 0, _) : conclude();
            (_, PASS_CONCLUDE, _, _, _, _, _, _) : end();
            // It has the root's result by now. Who reads the second half of the rack's sum writes its first half.
            (_, PASS_FETCH, _, _, KIND_CONTRIBUTION, _, _, STATE_FINAL &&& STATE_FINAL) : end();
            (_, PASS_READ, _, _, KIND_CONTRIBUTION, _, _, STATE_FINAL &&& STATE_FINAL) : end();
            (_, PASS_FETCH, _, _, KIND_RESULT, _, 0, _) : reply();
            (_, PASS_FETCH, _, _, _, _, 0, _) : read_last();
            (_, PASS_FETCH, _, _, _, _, _, _) : end();
            (_, PASS_READ, OPERATION_READ_FIRST, _, _, 0, 0, _) : read_second_of_first();
            (_, PASS_READ, OPERATION_READ_FIRST, _, _, _, 0, _) : read_second();
            (_, PASS_READ, _, _, _, _, 0, _) : read_before();
            (_, PASS_READ, _, _, _, _, _, _) : end();
        }
    }

    apply {
        unwritten_orders.apply();
#if BOUNDS
        // Of a sum without some senders nothing more is written.
        unwritten = unwritten & ~slot.missing;
#endif
        turns_of_blocks.apply();
    }
}

// Before the values: the headers of a block that is read.
control NewBlock(inout headers_t hdr) {
    action add_all() {
        hdr.values_32.setValid();
        hdr.values_16.setValid();
        hdr.values_8.setValid();
        hdr.values_4.setValid();
        hdr.values_2.setValid();
        hdr.values_1.setValid();
        hdr.values_last.setValid();
    }

    apply {
        if (hdr.bridge.block == BLOCK_FULL_NEW) {
            add_all();
        } else if (hdr.bridge.block == BLOCK_LAST_NEW) {
            if (hdr.sumac.elements[5:0] == 0) {
                add_all();
            } else {
                if (hdr.sumac.elements[5:5] == 1) { hdr.values_32.setValid(); }
                if (hdr.sumac.elements[4:4] == 1) { hdr.values_16.setValid(); }
                if (hdr.sumac.elements[3:3] == 1) { hdr.values_8.setValid(); }
                if (hdr.sumac.elements[2:2] == 1) { hdr.values_4.setValid(); }
                if (hdr.sumac.elements[1:1] == 1) { hdr.values_2.setValid(); }
                if (hdr.sumac.elements[0:0] == 1) { hdr.values_1.setValid(); }
            }
        }
    }
}

// After the values: takes a written block off the packet, and says what the parser of the next turn finds in front.
control BlockDone(inout headers_t hdr) {
    action take_off() {
        hdr.values_32.setInvalid();
        hdr.values_16.setInvalid();
        hdr.values_8.setInvalid();
        hdr.values_4.setInvalid();
        hdr.values_2.setInvalid();
        hdr.values_1.setInvalid();
        hdr.values_last.setInvalid();
    }
    action next(bit<8> block) {
        take_off();
        hdr.bridge.block = block;
        hdr.bridge.number = hdr.bridge.number + 1;
    }
    action written() {
        take_off();
        hdr.bridge.block = BLOCK_LAST_NEW;
        hdr.bridge.operation = OPERATION_NONE;
        hdr.bridge.pass = hdr.bridge.then;
    }
    action wait() {
        hdr.bridge.number = hdr.bridge.number + 1;
    }
    action then(bit<8> block) {
        hdr.bridge.block = block;
    }
    table next_blocks {
        key = {
            hdr.bridge.pass : ternary;
            hdr.bridge.operation : ternary;
            hdr.bridge.block : ternary;
            hdr.bridge.number : ternary;
            hdr.bridge.last : ternary;
        }
        actions = { next; written; wait; then; NoAction; }
        const default_action = NoAction;
        const entries = {
            // pass operation block number last
            (PASS_WRITE, _, BLOCK_NONE, 1, 1) : written();
            (PASS_WRITE, _, BLOCK_NONE, 2, 2) : written();
            (PASS_WRITE, _, BLOCK_NONE, 3, 3) : written();
            (PASS_WRITE, _, BLOCK_NONE, _, _) : wait();
            (PASS_WRITE, _, _, 0, 1) : next(BLOCK_LAST);
            (PASS_WRITE, _, _, 1, 2) : next(BLOCK_LAST);
            (PASS_WRITE, _, _, 2, 3) : next(BLOCK_LAST);
            (PASS_WRITE, _, _, 0, _) : next(BLOCK_FULL);
            (PASS_WRITE, _, _, 1, 3) : next(BLOCK_FULL);
            (PASS_WRITE, _, _, _, _) : written();
            (PASS_READ, OPERATION_READ_FIRST, BLOCK_LAST_NEW, _, _) : then(BLOCK_LAST);
            (PASS_READ, OPERATION_READ_FIRST, _, _, _) : then(BLOCK_FULL);
            (PASS_READ, _, _, _, _) : then(BLOCK_FULL_NEW);
        }
    }

    apply {
        next_blocks.apply();
    }
}

#endif
