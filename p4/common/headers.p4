// The packet (docs/protocol.md, "Packet"), and the header that goes with it between two passes.
#ifndef HEADERS_P4
#define HEADERS_P4

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<8> PROTOCOL_ICMP = 1;
const bit<8> PROTOCOL_UDP = 17;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ethertype;
}

header vlan_t {
    bit<16> tag;
    bit<16> ethertype;
}

header ipv4_t {
    bit<8> version_ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_len;
    bit<16> id;
    bit<16> fragment; // flags and offset
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> len;
    bit<16> checksum;
}

// wire/src/header.rs; bits of flags_high and flags_low are the 16 flags, bit 15 first.
header sumac_t {
    bit<4> version;
    bit<4> kind;
    bit<8> format;
    // Bit 15: reserved.
    bit<1> flag_reserved;
    // Not in jobs of a switch.
    bit<1> empty;
    bit<1> unknown_job;
    bit<1> query;
    bit<1> not_finite;
    bit<1> mismatch;
    bit<1> exponent_round;
    bit<1> maximum;
    bit<1> pool_version;
    bit<1> level;
    bit<1> ecn_echo;
    bit<1> raw_float;
    bit<1> partial;
    bit<1> overflow;
    bit<1> collision;
    bit<1> resend;
    bit<16> job;
    bit<16> epoch;
    bit<32> seq;
    bit<32> slot;
    bit<8> fan_in_0;
    bit<8> fan_in_1;
    bit<16> elements;
    bit<32> bitmap_0;
    bit<32> bitmap_1;
    bit<16> contributors;
    int<8> exponent;
    int<8> next_exponent;
    bit<32> tensor;
    bit<32> offset;
    bit<32> timestamp;
    bit<32> next_seq;
    bit<64> token;
    bit<32> received;
    bit<16> lane;
    bit<16> reserved;
}

const bit<4> KIND_CONTRIBUTION = 1;
const bit<4> KIND_RESULT = 2;
const bit<4> KIND_PROBE = 3;
const bit<4> KIND_REPORT = 4;


// ARP for IPv4 over Ethernet.
header arp_t {
    bit<16> hardware;
    bit<16> protocol;
    bit<16> lengths;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender_ip;
    bit<48> target_mac;
    bit<32> target_ip;
}

header icmp_t {
    bit<8> kind;
    bit<8> code;
    bit<16> checksum;
}

#include "value_headers.p4"

// The header that a packet carries from the ingress to the egress, and from one pass to the next.
header bridge_t {
    // PASS_*: of the pass that follows; 0: the packet leaves by its port.
    bit<8> pass;
    // OPERATION_*: on the values, in the egress of this pass.
    bit<8> operation;
    // Cell of the values: a block of a static slot's version, or a slot of dynamic jobs.
    bit<16> cell;
    // DEST_*; to all of the job: 0.
    bit<16> destination;
#if BLOCKS > 1
    // BLOCK_*: the values that the packet's headers are of. The block's number, and that of the packet's last one.
    bit<8> block;
    bit<8> last;
    bit<16> number;
    // PASS_*: of the pass that follows when all blocks are written.
    bit<8> then;
#endif
}

const bit<8> PASS_NONE = 0;
// The packet ends after this egress.
const bit<8> PASS_END = 1;
// It leaves in the next pass.
const bit<8> PASS_SEND = 2;
// Static: marks the version final, draws its next chunk, and is sent to all.
const bit<8> PASS_CONCLUDE = 3;
// The same, but a root's result has named the next chunk, and takes the place of the rack's sum in the values.
const bit<8> PASS_CONCLUDE_ROOTS = 10;
// Static: marks the exponent round agreed, and is sent to all.
const bit<8> PASS_AGREE = 4;
// Static: the second half of the values, if the version still holds the chunk.
const bit<8> PASS_FETCH = 5;
// Dynamic: the second half of the values, if the slot still holds the chunk and the same contributions.
const bit<8> PASS_SUM = 6;
// The same, and frees the slot.
const bit<8> PASS_FLUSH = 7;
// Dynamic: the slot notes that it refused the chunk; is freed of the chunk; both.
const bit<8> PASS_REFUSE = 8;
const bit<8> PASS_RELEASE = 11;
const bit<8> PASS_RELEASE_REFUSE = 12;
// Static: the next block goes into the values; is read, if the version still holds the chunk (blocks.p4).
const bit<8> PASS_WRITE = 13;
const bit<8> PASS_READ = 14;
// Static: a flush, whose values were added, or had been before, asks for the lane's budget (budget.p4); claims its version.
const bit<8> PASS_GRANT = 15;
const bit<8> PASS_GRANT_HELD = 16;
const bit<8> PASS_CLAIM = 17;

const bit<8> OPERATION_NONE = 0;
// Replace the values by the packet's.
const bit<8> OPERATION_STORE = 1;
// Add, wrapping or saturating; the first half of the sums goes into the packet.
const bit<8> OPERATION_ADD = 2;
const bit<8> OPERATION_ADD_SATURATING = 4;
// Keep the larger values; what the packet has afterwards is of no use.
const bit<8> OPERATION_MAXIMUM = 3;
// The first half of the values into the packet; the second half into a packet that has the first.
const bit<8> OPERATION_READ_FIRST = 5;
const bit<8> OPERATION_READ_SECOND = 6;

// All elements of the packet, as before the first turn; a block of 64; the last block; the same two, which are not in the packet yet; none.
const bit<8> BLOCK_ALL = 0;
const bit<8> BLOCK_FULL = 1;
const bit<8> BLOCK_LAST = 2;
const bit<8> BLOCK_FULL_NEW = 3;
const bit<8> BLOCK_LAST_NEW = 4;
const bit<8> BLOCK_NONE = 5;

const bit<16> DEST_ALL = 0;
const bit<16> DEST_WORKERS = 1;
const bit<16> DEST_PARENTS = 33;

// The headers that one of the targets needs besides.
#ifndef MORE_HEADERS
#define MORE_HEADERS
#endif

struct headers_t {
    bridge_t bridge;
    MORE_HEADERS
    ethernet_t ethernet;
    vlan_t vlan;
    arp_t arp;
    ipv4_t ipv4;
    icmp_t icmp;
    udp_t udp;
    sumac_t sumac;
    VALUE_HEADERS
}

#endif
