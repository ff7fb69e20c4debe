// The two pipelines of the programs for Tofino and Tofino 2 (TNA, T2NA).
//
// One pipe does not have the containers for the values beside lookup, admission and decision. So the slots are in a pipe of their own, whose
// ports are in loopback, and packets go from the pipes with ports to it and back:
//
// | pipeline | half | what it does |
// | front | ingress | lookup, admission |
// | slots | egress | decision (static.p4, dynamic.p4) |
// | slots | ingress | values; here the packets end that are not the last of their chunk |
// | front | ingress | the answer; to the slots again, if they have to note the end of the chunk; or to a port or the job's multicast group |
// | front | egress | addresses |
//
// A static job's packet of several blocks takes such a turn for each of them (blocks.p4).
//
// Packets arrive and leave by the ports of any pipe with `front`.

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#define RECIRCULATION_PORT 6
#else
#include <tna.p4>
#define RECIRCULATION_PORT 68
#endif
// The pipe through which what comes back from the slots goes, and the pipe of the slots.
#ifndef FRONT_PIPE
#define FRONT_PIPE 0
#endif
#ifndef SLOTS_PIPE
#define SLOTS_PIPE 1
#endif
#define FRONT_PORT (FRONT_PIPE * 128 + RECIRCULATION_PORT)
#define SLOTS_PORT (SLOTS_PIPE * 128 + RECIRCULATION_PORT)
#define WITHOUT_PAYLOAD

#include "arch.p4"
#include "../common/sizes.p4"
#include "carried.p4"
#include "../common/headers.p4"
#include "../common/metadata.p4"
#include "../common/parser.p4"
#include "front.p4"
#include "slots.p4"

Pipeline(
    FrontIngressParser(), FrontIngress(), FrontIngressDeparser(), FrontEgressParser(), FrontEgress(), FrontEgressDeparser()) front;
Pipeline(
    SlotsIngressParser(), SlotsIngress(), SlotsIngressDeparser(), SlotsEgressParser(), SlotsEgress(), SlotsEgressDeparser()) slots;
