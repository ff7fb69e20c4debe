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
// Slots of static jobs, all together.
#ifndef STATIC_SLOTS
#define STATIC_SLOTS 4096
#endif
// Slots of each shard that dynamic jobs share.
#ifndef DYNAMIC_SLOTS
#define DYNAMIC_SLOTS 2048
#endif

// Versions of static slots: the first part of every register that is indexed by slots. Slots of dynamic jobs follow.
#define VERSIONS (STATIC_SLOTS * 2)
#define SHARED_SLOTS (DYNAMIC_SLOTS * SHARDS)
#define PLACES (VERSIONS + SHARED_SLOTS)
// Ticks (arch.p4) after which others may take the slot of a dynamic job that adds nothing to it.
#ifndef SLOT_TIMEOUT
#define SLOT_TIMEOUT TICKS_OF_SECOND
#endif
// Entries of tables. Jobs are numbered from 1 to 63, as the control plane does; members are workers and racks.
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
