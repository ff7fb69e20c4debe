// What the ingress finds out about a static slot.
#ifndef SLOT_P4
#define SLOT_P4

// wire/src/slot/mod.rs, `state`.
const bit<8> STATE_FINAL = 1;
const bit<8> STATE_AGREED = 2;
const bit<8> STATE_ROUND = 4;

struct slot_t {
    // What this pass does: note a result, or the exponent of a round; or take a contribution in, if the slot lets it.
    bit<1> is_concluding;
    bit<1> is_agreeing;
    bit<1> takes;

    // The packet's chunk is the first that its version ever has.
    bit<1> is_first_chunk;
    // The version whose turn it is to take a new chunk, and the chunk that the packet's version takes next.
    bit<32> turn;
    bit<32> next;
    // The packet's chunk; in the second pass the one that takes the version next.
    bit<32> number;
    bit<1> in_turn;

    // The packet's chunk against the version's: the same, a new one in turn, or an older one.
    bit<1> is_same;
    bit<1> is_new;
    bit<1> is_stale;

    // STATE_*.
    bit<8> state;
    bit<1> is_round;
    // Signature, number of elements and operation are the version's.
    bit<1> is_alike;
    bit<1> is_same_size;
    bit<1> is_other_kind;
    // The version had no elements.
    bit<1> is_empty;

    // The packet's values or exponent go into the version, if they are not in it; all others are in; so they are complete.
    bit<1> is_taken;
    bit<1> is_in;
    bit<1> completes;
    // Nobody's were missing before.
    bit<1> is_complete;
    bit<1> is_added;
    bit<1> is_first;
    int<8> exponent;
}

#endif
