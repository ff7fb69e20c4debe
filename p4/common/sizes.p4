// Sizes of the program. Those with #ifndef can be set on the compiler's command line.
#ifndef SIZES_P4
#define SIZES_P4

// UDP port of shard 0, a multiple of SHARDS.
#ifndef BASE_PORT
#define BASE_PORT 48700
#endif
// Shards, each with a port of its own: 1, 2 or 4.
#ifndef SHARDS
#define SHARDS 2
#endif
// The bits that the ports of all shards have in common.
#define PORT_MASK (0x10000 - SHARDS)
// Most blocks of 64 elements in a static job's chunk: 1, 2 or 4. With more than 1 a packet takes a turn through the slots for each block (blocks.p4).
// Tofino 1 has no stage left for that.
#ifndef BLOCKS
#if __TARGET_TOFINO__ == 1
#define BLOCKS 1
#else
#define BLOCKS 4
#endif
#endif
// Whether static jobs may have loss bounds. Tofino 1 has no stages left for that.
#ifndef BOUNDS
#if __TARGET_TOFINO__ == 1 || defined(DYNAMIC_ONLY)
#define BOUNDS 0
#else
#define BOUNDS 1
#endif
#endif
// Slots of static jobs, all together.
#ifndef STATIC_SLOTS
#if BLOCKS == 1
#define STATIC_SLOTS 4096
#else
#define STATIC_SLOTS 2048
#endif
#endif
// Slots of each shard that dynamic jobs share.
#ifndef DYNAMIC_SLOTS
#define DYNAMIC_SLOTS 2048
#endif

// Versions of static slots: the first part of every register that is indexed by slots. Slots of dynamic jobs follow.
#define VERSIONS (STATIC_SLOTS * 2)
#define SHARED_SLOTS (DYNAMIC_SLOTS * SHARDS)
// Cells of the registers of values, with a block each.
#define CELLS (VERSIONS * BLOCKS + SHARED_SLOTS)
// The first cell of a version, and the cell of a dynamic job's slot.
#if BLOCKS == 4
#define CELL_OF(PLACE) (PLACE << 2)
#elif BLOCKS == 2
#define CELL_OF(PLACE) (PLACE << 1)
#else
#define CELL_OF(PLACE) PLACE
#endif
#define SHARED_CELL_OF(SLOT) SLOT + VERSIONS * BLOCKS
// Ticks (arch.p4) after which others may take the slot of a dynamic job that adds nothing to it.
#ifndef SLOT_TIMEOUT
#define SLOT_TIMEOUT TICKS_OF_SECOND
#endif
// Entries of tables. Jobs are numbered from 1 to 63, as the control plane does below a switch; members are workers and racks.
#define JOBS 64
#define TOKENS (JOBS * 2)
#ifndef MEMBERS
#define MEMBERS 1024
#endif
#define SENDERS (MEMBERS * 2)
// A job's parent for each shard.
#define UPLINKS (JOBS * SHARDS)
#ifndef PLACED
#define PLACED 1024
#endif
#define WAYS (MEMBERS + UPLINKS)
#ifndef OWN_ADDRESSES
#define OWN_ADDRESSES 64
#endif
#ifndef HOSTS
#define HOSTS 1024
#endif
#define LANES (JOBS * 64)

#endif
