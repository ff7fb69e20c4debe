// What the ingress finds out about a slot that dynamic jobs share.
#ifndef SHARED_SLOT_P4
#define SHARED_SLOT_P4

struct shared_slot_t {
    // The chunk may take the slot if it is free; it only notes that its slot is in use; its slot is to be freed.
    bit<1> may_take;
    bit<1> touches;
    bit<1> frees;

    // One number for lane and chunk (CRC-32). Two chunks with the same are told apart by `holder` and `chunk`.
    bit<32> digest;
    // When somebody last added to the slot, in ticks, is SLOT_TIMEOUT or more ago.
    bit<1> is_aged;
    // Whose chunk it holds: nobody's, the packet's.
    bit<1> was_free;
    bit<1> holds;
    bit<1> is_taken;

    // This chunk, or a later one of its lane, was refused here.
    bit<1> has_refused;
    // Operation, number of elements, exponent and level are the chunk's.
    bit<1> is_alike;
    // The values are in; with them all are.
    bit<1> is_in;
    bit<1> completes;
    // The values, or what the packet says beside them, go into the slot.
    bit<1> adds;
    bit<1> merges;
    bit<1> is_alone;
    bit<1> is_second;
    // A slot of the first level refused it.
    bit<1> collided_below;
}

#endif
