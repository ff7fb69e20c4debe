// The headers that a packet of Sumac carries inside the switch instead of its Ethernet, IPv4 and UDP headers, which are written anew when it leaves.
// The egress parser of Tofino 1 reaches 160 bytes: these headers and Sumac's fit.
#ifndef CARRIED_P4
#define CARRIED_P4

// The fields that stay of the request's frame.
header frame_t {
    bit<16> shard;
    bit<16> tag;
    bit<8> is_tagged;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_len;
    bit<16> id;
    bit<16> fragment;
}

// From the ingress to a decision in the egress: fields of metadata_t.
header context_t {
    bit<8> is_dynamic;
    bit<8> is_child;
    bit<8> is_parents;
    bit<8> is_first_chunk;
#ifndef STATIC_ONLY
    bit<8> is_root;
    bit<8> has_no_slot;
#endif
#if BOUNDS
    bit<8> is_bounded;
#endif
    bit<16> slot;
#if BLOCKS > 1
    bit<16> place;
#endif
    bit<32> owner;
    bit<32> number;
    bit<32> all;
    bit<32> bit_;
    bit<16> parent;
    bit<16> sender;
    bit<16> rank;
    bit<16> receiver;
}

// From a decision to the ingress of the next pass.
header outcome_t {
    bit<8> answer;
    bit<8> flags;
    int<8> exponent;
    int<8> next_exponent;
    bit<32> next_seq;
    bit<32> tensor;
#ifndef STATIC_ONLY
    bit<8> is_second;
    bit<32> bitmap;
    bit<32> received;
#endif
#if BOUNDS
    bit<32> missing;
#endif
}

// It is not the aggregator's.
const bit<8> PASS_FORWARD = 9;

// The queue of both recirculation ports for packets that nothing repeats: those that conclude a chunk, and those with blocks to be written. Others
// fill queue 0, and lose packets there that workers send again.
#define UNREPEATED_QUEUE 1
#define IS_UNREPEATED(PASS) (PASS == PASS_CONCLUDE || PASS == PASS_CONCLUDE_ROOTS || PASS == PASS_AGREE || PASS == PASS_WRITE)

// The front has a flush's other passes.
#define ASKS(PASS) false

#define MORE_HEADERS context_t context; outcome_t outcome; frame_t frame;

#endif
