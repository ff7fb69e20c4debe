// Registers, counters and random numbers, in the words of Tofino's architecture; p4/bmv2/arch.p4 has the same names for v1model.
#ifndef ARCH_P4
#define ARCH_P4

typedef bit<16> index_t;
typedef QueueId_t queue_t;

// A register of unsigned words (TYPE: bit<8>, bit<16>, bit<32>).
#define REGISTER(TYPE, NAME, SIZE) Register<TYPE, index_t>(SIZE) NAME;

// NAME: an action on REGISTER, read and written in one step. The statements see `value`, the entry, and set `result`.
// One packet executes at most one action of a register.
#define REGISTER_ACTION(TYPE, RESULT, REGISTER, NAME, ...) \
    RegisterAction<TYPE, index_t, RESULT>(REGISTER) NAME = { \
        void apply(inout TYPE value, out RESULT result) { __VA_ARGS__ } \
    };

// The same without a result.
#define REGISTER_UPDATE(TYPE, REGISTER, NAME, ...) \
    RegisterAction<TYPE, index_t, TYPE>(REGISTER) NAME = { \
        void apply(inout TYPE value) { __VA_ARGS__ } \
    };

// The same of signed words, WIDTH bits each.
#define SIGNED_REGISTER(WIDTH, NAME, SIZE) Register<int<WIDTH>, index_t>(SIZE) NAME;
#define SIGNED_ACTION(WIDTH, REGISTER, NAME, ...) REGISTER_ACTION(int<WIDTH>, int<WIDTH>, REGISTER, NAME, __VA_ARGS__)
#define SIGNED_TEST(WIDTH, REGISTER, NAME, ...) REGISTER_ACTION(int<WIDTH>, bit<8>, REGISTER, NAME, __VA_ARGS__)
#define SIGNED_UPDATE(WIDTH, REGISTER, NAME, ...) REGISTER_UPDATE(int<WIDTH>, REGISTER, NAME, __VA_ARGS__)

// A register of pairs of words.
struct pair_t {
    bit<32> lo;
    bit<32> hi;
}

struct signed_pair_t {
    int<32> lo;
    int<32> hi;
}

#define PAIR_REGISTER(NAME, SIZE) Register<pair_t, index_t>(SIZE) NAME;

// The statements see `value.lo` and `value.hi`.
#define PAIR_ACTION(RESULT, REGISTER, NAME, ...) REGISTER_ACTION(pair_t, RESULT, REGISTER, NAME, __VA_ARGS__)
#define PAIR_UPDATE(REGISTER, NAME, ...) \
    RegisterAction<pair_t, index_t, bit<32>>(REGISTER) NAME = { \
        void apply(inout pair_t value) { __VA_ARGS__ } \
    };
// The same of signed words.
#define SIGNED_PAIR_REGISTER(NAME, SIZE) Register<signed_pair_t, index_t>(SIZE) NAME;
#define SIGNED_PAIR_ACTION(RESULT, REGISTER, NAME, ...) REGISTER_ACTION(signed_pair_t, RESULT, REGISTER, NAME, __VA_ARGS__)
#define SIGNED_PAIR_UPDATE(REGISTER, NAME, ...) \
    RegisterAction<signed_pair_t, index_t, int<32>>(REGISTER) NAME = { \
        void apply(inout signed_pair_t value) { __VA_ARGS__ } \
    };

#define EXECUTE(NAME, INDEX, RESULT) RESULT = NAME.execute(INDEX)
#define EXECUTE_UPDATE(NAME, INDEX) NAME.execute(INDEX)

// A counter of packets.
#define COUNTER(NAME, SIZE) Counter<bit<32>, index_t>(SIZE, CounterType_t.PACKETS) NAME;
#define COUNT(NAME, INDEX) NAME.count(INDEX)

// A source of random numbers of all bits.
#define RANDOM(TYPE, NAME) Random<TYPE>() NAME;
#define DRAW(TYPE, NAME, RESULT) RESULT = NAME.get()

// RESULT: a signed number that stands for A and B; by the hash that DIGESTS declares.
#define DIGESTS(NAME) Hash<bit<32>>(HashAlgorithm_t.CRC32) NAME;
#define DIGEST(NAME, RESULT, A, B) RESULT = (int<32>) NAME.get({A, B})

// The clock counts ticks of 65,536 ns.
#define TICKS_OF_SECOND 15259

#endif
