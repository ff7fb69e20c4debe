/* Scenarios of the collective network. */
#include "scenarios.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"

static const int TYPES[] = {FLOAT32, FLOAT16, BFLOAT16, INT32};
static const int OPERATIONS[] = {SUM, MIN, MAX};

int test_until(int (*test)(void *, int *, int *), void *request, int *size)
{
    double deadline = now() + TIMEOUT;
    for (int done = 0;;) {
        int result = test(request, &done, size);
        if (result != SUCCESS || done)
            return result;
        CHECK(now() < deadline);
        idle();
    }
}

void wait_coll(void *request)
{
    if (request != NULL)
        OK(test_until(plugin.test_coll, request, NULL));
}

/* Begins an allreduce; returns the result of the call. */
static int try_begin(void *comm, void *mhandle, struct reduction *reduction, int salt, size_t count)
{
    reduction->type = TYPES[salt % 4];
    reduction->op = OPERATIONS[salt / 4 % 3];
    reduction->salt = salt;
    reduction->count = count;
    reduction->send = allocate(count * size_of(reduction->type));
    reduction->recv = allocate(count * size_of(reduction->type));
    reduction->request = NULL;
    fill(reduction->send, reduction->type, count, rank, salt);
    double deadline = now() + TIMEOUT;
    int result = SUCCESS;
    while (reduction->request == NULL && result == SUCCESS) {
        CHECK(now() < deadline);
        result = plugin.iallreduce(comm, reduction->send, reduction->recv, count, reduction->type,
                                   reduction->op, mhandle, &reduction->request);
    }
    return result;
}

void begin(void *comm, void *mhandle, struct reduction *reduction, int salt, size_t count)
{
    OK(try_begin(comm, mhandle, reduction, salt, count));
}

static void check(const struct reduction *reduction)
{
    CHECK(is_reduction(reduction->recv, reduction->type, reduction->op, reduction->count, world,
                       reduction->salt));
    CHECK(((unsigned char *)reduction->recv)[reduction->count * size_of(reduction->type)] == 0xcd);
}

static void release(struct reduction *reduction)
{
    free(reduction->send);
    free(reduction->recv);
}

void end(struct reduction *reduction)
{
    check(reduction);
    release(reduction);
}

/* A dozen requests on each of some communicators at once, tested in the reverse order. */
void reduce_on(void *const *comms, int count, size_t elements)
{
    struct reduction reductions[8][IN_FLIGHT];
    void *mhandle;
    char registered;
    OK(plugin.reg_coll(comms[0], &registered, 1, PTR_HOST, &mhandle));
    CHECK(mhandle != NULL);
    for (int at = 0; at < IN_FLIGHT; at++)
        for (int comm = 0; comm < count; comm++)
            begin(comms[comm], mhandle, &reductions[comm][at], at + comm, elements + (size_t)at);
    int left = count * IN_FLIGHT;
    double deadline = now() + TIMEOUT;
    while (left > 0) {
        CHECK(now() < deadline);
        for (int comm = count - 1; comm >= 0; comm--)
            for (int at = IN_FLIGHT - 1; at >= 0; at--) {
                struct reduction *reduction = &reductions[comm][at];
                int done = 0, size = -1;
                if (reduction->request == NULL)
                    continue;
                OK(plugin.test_coll(reduction->request, &done, &size));
                if (!done)
                    continue;
                CHECK(size == (int)(reduction->count * size_of(reduction->type)));
                CHECK(plugin.test_coll(reduction->request, &done, &size) == INVALID_ARGUMENT);
                reduction->request = NULL;
                left--;
                end(reduction);
            }
        idle();
    }
    OK(plugin.dereg_coll(comms[0], mhandle));
}

static void *channels(void *name)
{
    void *comms[3];
    char channel[64];
    for (int at = 0; at < 3; at++) {
        snprintf(channel, sizeof channel, "%s-%d", (char *)name, at);
        comms[at] = join(channel);
    }
    reduce_on(comms, 3, 1);
    reduce_on(comms, 3, 5000);
    for (int at = 0; at < 3; at++)
        OK(plugin.close_coll(comms[at]));
    return NULL;
}

/* Two communicators with three channels each, each communicator on a proxy thread of its own. */
void sums(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, channels, "first") == 0);
    channels("second");
    CHECK(pthread_join(thread, NULL) == 0);
}

static void gather_and_scatter(void *comm, size_t bytes_per_rank, size_t offset, size_t bytes)
{
    size_t own_begin = bytes_per_rank * (size_t)rank, own_end = own_begin + bytes_per_rank;
    size_t from = offset > own_begin ? offset : own_begin;
    size_t to = offset + bytes < own_end ? offset + bytes : own_end;
    size_t all = bytes_per_rank * (size_t)world;
    unsigned char *expected = allocate(all), *result = allocate(all), *input = allocate(all);
    void *request = NULL;
    fill_bytes(expected, all, 3);
    memcpy(input, expected + own_begin, bytes_per_rank);
    OK(plugin.iallgather(comm, input + (from < to ? from - own_begin : 0), result, bytes_per_rank, offset,
                         bytes, NULL, &request));
    CHECK(request != NULL);
    wait_coll(request);
    CHECK(memcmp(result, expected + offset, bytes) == 0 && result[bytes] == 0xcd);

    for (int type = 0; type < 4; type++) {
        size_t size = size_of(TYPES[type]);
        memset(result, 0xcd, all + 1);
        fill(input, TYPES[type], all / size, rank, type);
        OK(plugin.ireducescatter(comm, input + offset, result, bytes_per_rank, offset, bytes, TYPES[type],
                                 SUM, NULL, &request));
        wait_coll(request);
        if (from < to) {
            CHECK(is_reduction_from(result, TYPES[type], SUM, from / size, (to - from) / size, world, type));
            CHECK(result[to - from] == 0xcd);
        } else {
            CHECK(result[0] == 0xcd);
        }
    }
    free(expected), free(result), free(input);
}

/* Windows of gathers and reduce-scatters. */
void windows(void)
{
    void *comm = join("windows"), *request = NULL;
    int type = FLOAT32;
    size_t block = 12000, all = block * (size_t)world;
    gather_and_scatter(comm, block, 0, all);
    gather_and_scatter(comm, block, 0, block);
    gather_and_scatter(comm, block, block, block);
    gather_and_scatter(comm, block, 4000, 4);
    gather_and_scatter(comm, block, block - 400, 1200);
    gather_and_scatter(comm, block, all - 40, 40);
    gather_and_scatter(comm, 4, 0, (size_t)world * 4);
    CHECK(plugin.iallgather(comm, &type, &type, 4, 0, (size_t)world * 4 + 4, NULL, &request) ==
          INVALID_ARGUMENT);
    CHECK(plugin.ireducescatter(comm, &type, &type, 6, 0, 6, FLOAT32, SUM, NULL, &request) ==
          INVALID_ARGUMENT);
    CHECK(plugin.ireducescatter(comm, &type, &type, 4, 0, 4, FLOAT64, SUM, NULL, &request) == INVALID_USAGE);
    OK(plugin.iallgather(comm, &type, &type, 4, 0, 0, NULL, &request));
    wait_coll(request);
    OK(plugin.close_coll(comm));
}

/* NaN is carried, and ends no job; more requests than slots are deferred; a sum out of range is an error. */
void values(void)
{
    void *comm = join("values"), *requests[20] = {NULL};
    float not_a_number[4] = {1, NAN, 2, 3}, result[4];
    int begun = 0;
    OK(plugin.iallreduce(comm, not_a_number, result, 4, FLOAT32, SUM, NULL, &requests[0]));
    wait_coll(requests[0]);
    CHECK(isnan(result[1]));
    for (int at = 0; at < 20; at++) {
        OK(plugin.iallreduce(comm, &rank, result, 1, INT32, SUM, NULL, &requests[at]));
        begun += requests[at] != NULL;
    }
    CHECK(begun == 16 && requests[15] != NULL && requests[16] == NULL);
    for (int at = 0; at < 16; at++)
        wait_coll(requests[at]);
    int32_t large = INT32_MAX;
    OK(plugin.iallreduce(comm, &large, &large, 1, INT32, SUM, NULL, &requests[0]));
    CHECK(test_until(plugin.test_coll, requests[0], NULL) == INVALID_ARGUMENT);
    OK(plugin.close_coll(comm));
}

/* The ranks are not the same number at each daemon: they do not join, and NCCL goes on without the collective
 * network. */
void uneven(void)
{
    void *listener = NULL, *comm = &listener, *pointers[64];
    char own[HANDLE_BYTES], all[64 * HANDLE_BYTES];
    OK(plugin.listen_coll(own, &listener));
    exchange("uneven", own, sizeof own, all);
    for (int other = 0; other < world; other++)
        pointers[other] = all + other * HANDLE_BYTES;
    CHECK(plugin.connect_coll(pointers, world, world, listener, &comm) == INVALID_ARGUMENT && comm == NULL);
    OK(plugin.listen_coll(own, &listener));
    CHECK(plugin.connect_coll(pointers, world, rank, listener, &comm) == INVALID_USAGE && comm == NULL);
    CHECK(plugin.close_listen_coll(listener) == INVALID_ARGUMENT);
}

/* The aggregator dies while each of two ranks waits for six requests on two of four channels, which the other
 * rank begins only then. All of them end in errors, unless the job goes on. */
void aggregator_dies(bool goes_on)
{
    enum { CHANNELS = 4 };
    void *comms[CHANNELS], *connection, *request;
    struct reduction reductions[CHANNELS][IN_FLIGHT];
    int expected = goes_on ? SUCCESS : REMOTE_ERROR, done = 0, all[64];
    char channel[64], byte = 7;
    for (int at = 0; at < CHANNELS; at++) {
        snprintf(channel, sizeof channel, "channel-%d", at);
        comms[at] = join(channel);
        int count = at % 2 == rank ? IN_FLIGHT : IN_FLIGHT / 2;
        for (int number = 0; number < count; number++)
            begin(comms[at], NULL, &reductions[at][number], at + number, 5000);
    }
    connection = pair("connection", 0, 1);
    for (int at = 0; at < CHANNELS; at++)
        for (int number = 0; number < IN_FLIGHT / 2; number++) {
            wait_coll(reductions[at][number].request);
            end(&reductions[at][number]);
        }
    for (int at = rank; at < CHANNELS; at += 2)
        for (int number = IN_FLIGHT / 2; number < IN_FLIGHT; number++) {
            OK(plugin.test_coll(reductions[at][number].request, &done, NULL));
            CHECK(!done);
        }
    exchange("in-flight", &done, sizeof done, all);
    while (!appeared("killed"))
        idle();

    double start = now();
    for (int at = 1 - rank; at < CHANNELS; at += 2)
        for (int number = IN_FLIGHT / 2; number < IN_FLIGHT; number++) {
            int result = try_begin(comms[at], NULL, &reductions[at][number], at + number, 5000);
            CHECK(result == SUCCESS || result == expected);
        }
    for (int at = CHANNELS - 1; at >= 0; at--)
        for (int number = IN_FLIGHT - 1; number >= IN_FLIGHT / 2; number--) {
            struct reduction *reduction = &reductions[at][number];
            /* A call that failed has begun no request. */
            if (reduction->request != NULL)
                CHECK(test_until(plugin.test_coll, reduction->request, NULL) == expected);
            if (goes_on)
                check(reduction);
            release(reduction);
        }
    double ended = now() - start;
    /* The connection's job needs no aggregator. */
    if (connection != NULL) {
        OK(rank == 0 ? plugin.isend(connection, &byte, 1, NULL, &request)
                     : plugin.irecv(connection, &byte, 1, NULL, &request));
        OK(test_until(plugin.test, request, NULL));
    }
    start = now();
    for (int at = 0; at < CHANNELS; at++) {
        int32_t value = 1;
        if (!goes_on)
            CHECK(plugin.iallreduce(comms[at], &value, &value, 1, INT32, SUM, NULL, &request) == expected);
        OK(plugin.close_coll(comms[at]));
    }
    OK(rank == 0 ? plugin.close_send(connection) : plugin.close_recv(connection));
    printf("rank %d: ended after %.1f s, closed after %.1f s\n", rank, ended, now() - start);
    exchange("closed", &done, sizeof done, all);
    while (!appeared("restarted"))
        idle();
    comms[0] = join("after-restart");
    reduce_on(comms, 1, 100);
    OK(plugin.close_coll(comms[0]));
}
