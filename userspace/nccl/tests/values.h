/* Values of tensors and messages: small whole numbers, whose sums all types hold exactly. */
#ifndef VALUES_H
#define VALUES_H

#include <stdbool.h>
#include <string.h>

#include "nccl_abi.h"

static inline size_t size_of(int type)
{
    return type == FLOAT16 || type == BFLOAT16 ? 2 : 4;
}

/* From -3 to 4. */
static inline int value(size_t index, int of_rank, int salt)
{
    return (int)((index * 7 + (size_t)of_rank * 3 + (size_t)salt) % 8) - 3;
}

/* Writes a whole number below 2048 in a type. */
static inline void store(void *data, int type, size_t index, int number)
{
    float single = (float)number;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    uint16_t half = (uint16_t)(bits >> 16);
    if (type == FLOAT16) {
        uint32_t exponent = bits >> 23 & 0xff;
        half = (uint16_t)(bits >> 31 << 15);
        if (exponent != 0)
            half = (uint16_t)(half | (exponent - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
    }
    if (type == INT32)
        memcpy((char *)data + 4 * index, &number, 4);
    else if (type == FLOAT32)
        memcpy((char *)data + 4 * index, &single, 4);
    else
        memcpy((char *)data + 2 * index, &half, 2);
}

static inline void fill(void *data, int type, size_t count, int of_rank, int salt)
{
    for (size_t index = 0; index < count; index++)
        store(data, type, index, value(index, of_rank, salt));
}

static inline int reduced(size_t index, int op, int ranks, int salt)
{
    int result = value(index, 0, salt);
    for (int of_rank = 1; of_rank < ranks; of_rank++) {
        int other = value(index, of_rank, salt);
        if (op == SUM)
            result += other;
        else if (op == MIN ? other < result : other > result)
            result = other;
    }
    return result;
}

/* Whether the data has the reduction's bits, from the tensor's element `first` on. */
static inline bool is_reduction_from(const void *data, int type, int op, size_t first, size_t count,
                                     int ranks, int salt)
{
    size_t size = size_of(type);
    for (size_t index = 0; index < count; index++) {
        char expected[4];
        store(expected, type, 0, reduced(first + index, op, ranks, salt));
        if (memcmp((const char *)data + index * size, expected, size) != 0)
            return false;
    }
    return true;
}

static inline bool is_reduction(const void *data, int type, int op, size_t count, int ranks, int salt)
{
    return is_reduction_from(data, type, op, 0, count, ranks, salt);
}

static inline unsigned char byte_of(size_t index, int salt)
{
    return (unsigned char)((index * 31 + (index >> 8) * 17 + (size_t)salt * 101) % 255);
}

static inline void fill_bytes(unsigned char *data, size_t count, int salt)
{
    for (size_t index = 0; index < count; index++)
        data[index] = byte_of(index, salt);
}

static inline bool are_bytes(const unsigned char *data, size_t count, int salt)
{
    for (size_t index = 0; index < count; index++)
        if (data[index] != byte_of(index, salt))
            return false;
    return true;
}

#endif
