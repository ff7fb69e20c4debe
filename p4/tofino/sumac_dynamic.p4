// The aggregator for Tofino 1, dynamic jobs.

#define DYNAMIC_ONLY
#include "pipelines.p4"

Switch(front, slots) main;
