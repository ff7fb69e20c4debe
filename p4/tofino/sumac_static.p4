// The aggregator for Tofino 1, static jobs.

#define STATIC_ONLY
#include "pipelines.p4"

Switch(front, slots) main;
