// The aggregator, static and dynamic jobs, for Tofino 2. Tofino 1 has stages for one of them: sumac_static.p4, sumac_dynamic.p4.

#include "pipelines.p4"

Switch(front, slots) main;
