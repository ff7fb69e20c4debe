// The metadata of a packet.
#ifndef METADATA_P4
#define METADATA_P4

struct metadata_t {
    // By the parser: the destination port is the aggregator's; the frame ends before its elements do.
    bit<1> is_ours;
    bit<1> is_truncated;

    // Its first four bits, even if the rest of the header is missing.
    bit<4> version;

    // REASON_* of the counter that counts the packet.
    bit<6> reason;
    // No table of admission.p4 has anything against it.
    bit<1> is_admitted;

    // The packet's form: 0 where it is right.
    bit<16> ip_excess;
    bit<16> payload_excess;
    bit<16> elements_len;
    bit<16> too_short;

    // The job.
    bit<1> is_known;
    bit<1> is_former;
    bit<1> is_dynamic;
    bit<1> is_child;
    bit<1> is_root;
    bit<1> reassigns;
    // Its static operations may have loss bounds.
    bit<1> is_bounded;
    // 0: it is the packet's.
    bit<16> other_epoch;
    // 0: the packet has no more elements than the job's chunks.
    bit<16> too_long;
    bit<16> most_elements;
    // The bits of all senders.
    bit<32> all;
    bit<8> world;
    bit<16> contributors;
    bit<32> rack_bit;
    bit<8> racks;
    bit<64> result_token;

    // The sender.
    bit<1> has_token;
    bit<1> has_result_token;
    bit<1> is_sender;
    bit<1> is_bound;
    bit<1> is_side;
    bit<1> is_parent_source;
    bit<1> is_uplink;
    bit<1> is_past;
    bit<16> sender;
    bit<16> rank;
    bit<32> bit_;
    bit<16> parent;
    bit<16> receiver;
    // It comes from where the job's sums go to.
    bit<1> is_parents;
    // It comes from a member of a removed job.
    bit<1> is_told;

    // The place that it names: a lane's first slot, the slot in the lane, and the slot's or version's index.
    bit<16> shard;
    bit<1> is_placed;
    bit<1> has_no_slot;
    bit<16> first;
    bit<16> lane;
    bit<32> lane_slots;
    bit<32> slot_in_lane;
    bit<16> short_slot;
    bit<16> slot;
    bit<16> place;
    // The chunk is the first of its version; the chunk that the pass is about.
    bit<1> is_first_chunk;
    bit<32> number;
    // Chunks from its own to the first of its operation, of a flush.
    bit<32> ahead;
    // The job and its epoch; of a dynamic job the lane too.
    bit<32> owner;

    // Of a flush, the senders that are missing with it; of a partial result, those that are not in it.
    bit<32> missing;
    bit<16> count_missing;
    // The first pass of a flush, which a later one counts; that pass.
    bit<1> is_uncounted;
    bit<1> is_counted;

    // The decision about it: ANSWER_*, and the worker_events that it counts.
    bit<8> answer;
    bit<2> event;
    bit<1> has_event;
    // Merged flags of the slot: overflow 8, ECN echo 4, not finite 2.
    bit<8> flags;
    int<8> exponent;
    int<8> next_exponent;
    bit<32> next_seq;
    bit<32> tensor;
    // Of a dynamic job's sum: the senders in it, at which level, and what they have received at least.
    bit<32> bitmap;
    bit<1> is_second;
    bit<32> received;

    // Its destination: a port, or a multicast group; what is neither and does not recirculate is dropped.
    bit<9> ingress_port;
    // The clock, in ticks (arch.p4).
    bit<32> now;
    bit<1> has_port;
    bit<1> is_to_slots;
    bit<9> port;
    bit<16> group;
    // It comes from a port, not from an earlier pass.
    bit<1> is_first_pass;
    bit<1> is_injected;
    // Nothing shows that it is for the aggregator: forwarded like any other.
    bit<1> is_for_others;
}

const bit<2> ECN_CAPABLE = 2;
const bit<2> ECN_MARKED = 3;

// The kinds of packets that leave; 0: as it came (wire/src/slot/answer.rs, wire/src/dynamic/mod.rs).
const bit<8> ANSWER_RESULT = 1;
const bit<8> ANSWER_AGREED = 2;
const bit<8> ANSWER_REFUSAL = 3;
const bit<8> ANSWER_WANTED = 4;
const bit<8> ANSWER_QUESTION = 5;
const bit<8> ANSWER_PART = 6;
const bit<8> ANSWER_PART_OF_ROUND = 7;
const bit<8> ANSWER_REPORT = 8;
const bit<8> ANSWER_UNKNOWN_JOB = 9;
const bit<8> ANSWER_PASSED = 10;
const bit<8> ANSWER_COLLIDED = 11;
const bit<8> ANSWER_SUM = 12;
const bit<8> ANSWER_FLUSHED = 13;

// worker_events.
const bit<2> EVENT_ADDED = 0;
// Added, and the last of its chunk.
const bit<2> EVENT_LAST = 1;
const bit<2> EVENT_DUPLICATE = 2;
const bit<2> EVENT_REPLY = 3;

#endif
