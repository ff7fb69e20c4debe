// Registers, counters and random numbers, in the words of v1model; p4/tofino/arch.p4 has the same names for Tofino and explains them.
#ifndef ARCH_P4
#define ARCH_P4

typedef bit<16> index_t;
typedef bit<3> queue_t;

// Registers of the behavioural model hold bit<N> only: signed words are cast, and a pair is one word of 64 bits, `lo` first.
#define REGISTER(TYPE, NAME, SIZE) register<TYPE>(SIZE) NAME;

#define REGISTER_ACTION(TYPE, RESULT, REGISTER, NAME, ...) \
    action NAME(in index_t index, out RESULT result) { \
        TYPE value; \
        REGISTER.read(value, (bit<32>) index); \
        __VA_ARGS__ \
        REGISTER.write((bit<32>) index, value); \
    }

#define REGISTER_UPDATE(TYPE, REGISTER, NAME, ...) \
    action NAME(in index_t index) { \
        TYPE value; \
        REGISTER.read(value, (bit<32>) index); \
        __VA_ARGS__ \
        REGISTER.write((bit<32>) index, value); \
    }

#define SIGNED_REGISTER(WIDTH, NAME, SIZE) register<bit<WIDTH>>(SIZE) NAME;

#define ON_SIGNED(WIDTH, REGISTER, ...) \
        bit<WIDTH> raw; \
        int<WIDTH> value; \
        REGISTER.read(raw, (bit<32>) index); \
        value = (int<WIDTH>) raw; \
        __VA_ARGS__ \
        REGISTER.write((bit<32>) index, (bit<WIDTH>) value);

#define SIGNED_ACTION(WIDTH, REGISTER, NAME, ...) \
    action NAME(in index_t index, out int<WIDTH> result) { ON_SIGNED(WIDTH, REGISTER, __VA_ARGS__) }
#define SIGNED_TEST(WIDTH, REGISTER, NAME, ...) \
    action NAME(in index_t index, out bit<8> result) { ON_SIGNED(WIDTH, REGISTER, __VA_ARGS__) }
#define SIGNED_UPDATE(WIDTH, REGISTER, NAME, ...) \
    action NAME(in index_t index) { ON_SIGNED(WIDTH, REGISTER, __VA_ARGS__) }

struct pair_t {
    bit<32> lo;
    bit<32> hi;
}

struct signed_pair_t {
    int<32> lo;
    int<32> hi;
}

#define PAIR_REGISTER(NAME, SIZE) register<bit<64>>(SIZE) NAME;
#define SIGNED_PAIR_REGISTER(NAME, SIZE) register<bit<64>>(SIZE) NAME;

#define ON_PAIR(TYPE, WORD, REGISTER, ...) \
        bit<64> both; \
        TYPE value; \
        REGISTER.read(both, (bit<32>) index); \
        value.lo = (WORD) both[63:32]; \
        value.hi = (WORD) both[31:0]; \
        __VA_ARGS__ \
        REGISTER.write((bit<32>) index, (bit<32>) value.lo ++ (bit<32>) value.hi);

#define PAIR_ACTION(RESULT, REGISTER, NAME, ...) \
    action NAME(in index_t index, out RESULT result) { ON_PAIR(pair_t, bit<32>, REGISTER, __VA_ARGS__) }
#define PAIR_UPDATE(REGISTER, NAME, ...) \
    action NAME(in index_t index) { ON_PAIR(pair_t, bit<32>, REGISTER, __VA_ARGS__) }
#define SIGNED_PAIR_ACTION(RESULT, REGISTER, NAME, ...) \
    action NAME(in index_t index, out RESULT result) { ON_PAIR(signed_pair_t, int<32>, REGISTER, __VA_ARGS__) }
#define SIGNED_PAIR_UPDATE(REGISTER, NAME, ...) \
    action NAME(in index_t index) { ON_PAIR(signed_pair_t, int<32>, REGISTER, __VA_ARGS__) }

#define EXECUTE(NAME, INDEX, RESULT) NAME(INDEX, RESULT)
#define EXECUTE_UPDATE(NAME, INDEX) NAME(INDEX)

#define COUNTER(NAME, SIZE) counter(SIZE, CounterType.packets) NAME;
#define COUNT(NAME, INDEX) NAME.count((bit<32>) (INDEX))

#define RANDOM(TYPE, NAME)
#define DRAW(TYPE, NAME, RESULT) random<TYPE>(RESULT, (TYPE) 0, ~((TYPE) 0))

#define DIGESTS(NAME)
#define DIGEST(NAME, RESULT, A, B) \
    { \
        bit<32> digest; \
        hash(digest, HashAlgorithm.crc32, (bit<32>) 0, {A, B}, (bit<64>) 1 << 32); \
        RESULT = (int<32>) digest; \
    }

// The clock counts ticks of 64 microseconds.
#define TICKS_OF_SECOND 15625

#endif
