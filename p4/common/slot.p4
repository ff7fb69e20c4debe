// The metadata of a packet to a static slot.
#ifndef SLOT_P4
#define SLOT_P4

// wire/src/slot/mod.rs, `state`.
const bit<8> STATE_FINAL = 1;
const bit<8> STATE_AGREED = 2;
const bit<8> STATE_ROUND = 4;
// A flush has claimed the version: it takes nothing any more.
const bit<8> STATE_CLAIMED = 8;

struct slot_t {
    // The packet is a contribution, which the slot may take in.
    bit<8> takes;
    // The fields that it writes: STATE_*, elements and operation, exponent, flags, and the senders that are missing with it.
    bit<8> mark;
    bit<16> mine;
    int<8> exponent;
    bit<8> flags;
    bit<32> others;
    // Its sender has the results of the slot's chunks before this one.
    bit<32> known;

    // It is the turn of the packet's version, and of its chunk in that version.
    bit<8> is_turn;
    bit<32> is_next; // as wide as `next`, which the same register returns
    // The chunk that takes the version next.
    bit<32> next;
    // The version is the job's; the chunks from its own to the packet's.
    bit<8> is_owner;
    bit<32> held;
    bit<32> behind;

    // The packet's chunk against the version's: the same, a new one in turn, or an older one.
    bit<1> is_same;
    bit<1> is_new;
    bit<1> is_stale;

    // STATE_*; and the signature is the version's.
    bit<8> state;
    bit<8> is_alike;
    // Elements and operation of the version, 0: none yet; and their difference from the packet's.
    bit<16> size;
    bit<16> size_difference;
    bit<1> is_same_size;
    bit<1> is_other_kind;
    bit<1> is_empty;

    // The packet's values or exponent go into the version, if they are not in it.
    bit<1> is_taken;
    // Senders that were missing; the packet's among them; and all but the packet's.
    bit<32> missing;
    bit<32> present;
    bit<32> left;
    bit<1> is_in;
    // Nobody's were missing; only the packet's were.
    bit<1> is_complete;
    bit<1> completes;
    // A pass of a flush for its budget: `later_passes` and blocks.p4 are not for it.
    bit<1> is_apart;
}

#endif
