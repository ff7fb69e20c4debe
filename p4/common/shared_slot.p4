// The metadata of a packet to a slot that dynamic jobs share.
#ifndef SHARED_SLOT_P4
#define SHARED_SLOT_P4

// The role of a pass towards its slot.
const bit<8> ROLE_NONE = 0;
// A contribution that may take the slot; one that is alone at its level; one that was sent before.
const bit<8> ROLE_OFFER = 1;
const bit<8> ROLE_ALONE = 2;
const bit<8> ROLE_AGAIN = 3;
// The slot is looked at again; is freed of the chunk; notes that it refused the chunk; both.
const bit<8> ROLE_LOOK = 4;
const bit<8> ROLE_FREE = 5;
const bit<8> ROLE_REFUSE = 6;
const bit<8> ROLE_FREE_REFUSE = 7;
// The sum leaves to the parameter host, and others may take the slot.
const bit<8> ROLE_SUMMED = 8;

// The bit of an owner that says so: jobs have fewer numbers than bits.
const bit<32> SUMMED = 0x02000000;

struct shared_slot_t {
    bit<8> role;
    // One number for lane and chunk (CRC-32), and the clock, in the form of their register. Two chunks with one number are told apart
    // by `holder` and `chunk`.
    int<32> digest;
    int<32> now;
    // Overflow, ECN echo, not finite, as in metadata_t.
    bit<8> flags;
    // Exponent, maximum, level and number of elements.
    bit<32> kind;

    // The slot refused a chunk of the packet's lane, so many chunks after the packet's.
    bit<8> is_refused_lane;
    bit<32> refused_behind;
    bit<1> has_refused;

    // The chunk may take the slot, to which nobody has added for SLOT_TIMEOUT, or whose sum has left; or the slot is freed of the
    // chunk, or of the chunk's claim to it.
    bit<1> may_take;
    bit<8> is_stamped;
    // Whose chunk the slot holds, and their difference from the packet's.
    bit<32> holder;
    bit<32> other_holder;
    bit<32> chunk;
    bit<32> other_chunk;
    bit<1> holds;
    bit<1> is_taken;
    bit<1> was_free;

    bit<8> is_kind;
    bit<8> is_alike;

    // The senders in it; the packet's among them; those that are missing with the packet's; a sum's that are not in it any more.
    bit<32> before;
    bit<32> present;
    bit<32> missing;
    bit<32> changed;
    bit<1> merges;
}

#endif
