/* The plugin as NCCL's proxy thread uses it: proxy LIBRARY SCENARIO [COUNT]. RANK, WORLD, VERSION and EXCHANGE, a folder
 * that all ranks have, are in the environment. The other ranks run the same program. */
#include "plugin.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"

#define IN_FLIGHT 12
/* Seconds after which a request has ended, or an error is reported. */
#define TIMEOUT 60.0

static const int TYPES[] = {FLOAT32, FLOAT16, BFLOAT16, INT32};
static const int OPERATIONS[] = {SUM, MIN, MAX};

static int test_until(int (*test)(void *, int *, int *), void *request, int *size)
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

static void wait_coll(void *request)
{
    if (request != NULL)
        OK(test_until(plugin.test_coll, request, NULL));
}

/* A request of an allreduce, with its memory. */
struct reduction {
    void *send, *recv, *request;
    int type, op, salt;
    size_t count;
};

static void begin(void *comm, void *mhandle, struct reduction *reduction, int salt, size_t count)
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
    while (reduction->request == NULL) {
        CHECK(now() < deadline);
        OK(plugin.iallreduce(comm, reduction->send, reduction->recv, count, reduction->type, reduction->op, mhandle,
                             &reduction->request));
    }
}

static void check(const struct reduction *reduction)
{
    CHECK(is_reduction(reduction->recv, reduction->type, reduction->op, reduction->count, world, reduction->salt));
    CHECK(((unsigned char *)reduction->recv)[reduction->count * size_of(reduction->type)] == 0xcd);
}

static void end(struct reduction *reduction)
{
    check(reduction);
    free(reduction->send);
    free(reduction->recv);
}

/* A dozen requests on each of some communicators at once, tested in the reverse order. */
static void reduce_on(void *const *comms, int count, size_t elements)
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
static void sums(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, channels, "first") == 0);
    channels("second");
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Tensors of the sizes of NCCL's chunks and larger ones, so that the staging memory grows. */
static void large(void)
{
    void *comm = join("large");
    struct reduction reduction;
    const size_t counts[] = {100, 100000, 1 << 20, 300000, 5000001};
    for (int at = 0; at < 5; at++) {
        begin(comm, NULL, &reduction, 4 * at, counts[at]);
        wait_coll(reduction.request);
        end(&reduction);
    }
    OK(plugin.close_coll(comm));
    void *sending = pair("large-pair", 0, 1);
    size_t bytes = 20000003;
    unsigned char *data = allocate(bytes);
    void *request = NULL;
    int size = 0;
    if (rank == 0)
        fill_bytes(data, bytes, 5);
    if (rank == 0)
        OK(plugin.isend(sending, data, bytes, NULL, &request));
    else if (rank == 1)
        OK(plugin.irecv(sending, data, bytes, NULL, &request));
    if (sending != NULL) {
        OK(test_until(plugin.test, request, &size));
        CHECK(size == (int)bytes && are_bytes(data, bytes, 5) && data[bytes] == 0xcd);
        OK(rank == 0 ? plugin.close_send(sending) : plugin.close_recv(sending));
    }
    free(data);
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
    OK(plugin.iallgather(comm, input + (from < to ? from - own_begin : 0), result, bytes_per_rank, offset, bytes, NULL,
                         &request));
    CHECK(request != NULL);
    wait_coll(request);
    CHECK(memcmp(result, expected + offset, bytes) == 0 && result[bytes] == 0xcd);

    for (int type = 0; type < 4; type++) {
        size_t size = size_of(TYPES[type]);
        memset(result, 0xcd, all + 1);
        fill(input, TYPES[type], all / size, rank, type);
        OK(plugin.ireducescatter(comm, input + offset, result, bytes_per_rank, offset, bytes, TYPES[type], SUM, NULL,
                                 &request));
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
static void windows(void)
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
    CHECK(plugin.iallgather(comm, &type, &type, 4, 0, (size_t)world * 4 + 4, NULL, &request) == INVALID_ARGUMENT);
    CHECK(plugin.ireducescatter(comm, &type, &type, 6, 0, 6, FLOAT32, SUM, NULL, &request) == INVALID_ARGUMENT);
    CHECK(plugin.ireducescatter(comm, &type, &type, 4, 0, 4, FLOAT64, SUM, NULL, &request) == INVALID_USAGE);
    OK(plugin.iallgather(comm, &type, &type, 4, 0, 0, NULL, &request));
    wait_coll(request);
    OK(plugin.close_coll(comm));
}

/* A message, sent or received. */
struct message {
    unsigned char *data;
    void *request;
    size_t size, room;
};

static void exchange_messages(void *const *sending, void *const *receiving, int pairs)
{
    static const size_t SIZES[IN_FLIGHT] = {0, 1, 1007, 1008, 1009, 4096, 100000, 7, 300001, 0, 1024, 65536};
    struct message sent[4][IN_FLIGHT], received[4][IN_FLIGHT];
    for (int at = 0; at < IN_FLIGHT; at++)
        for (int pair = 0; pair < pairs; pair++) {
            struct message *out = &sent[pair][at], *in = &received[pair][at];
            *out = (struct message){allocate(SIZES[at]), NULL, SIZES[at], SIZES[at]};
            *in = (struct message){allocate(SIZES[at] + 1000), NULL, SIZES[at], SIZES[at] + 1000};
            fill_bytes(out->data, out->size, at + pair);
            double deadline = now() + TIMEOUT;
            do
                OK(plugin.irecv(receiving[pair], in->data, in->room, NULL, &in->request));
            while (in->request == NULL && now() < deadline);
            do
                OK(plugin.isend(sending[pair], out->data, out->size, NULL, &out->request));
            while (out->request == NULL && now() < deadline);
            CHECK(in->request != NULL && out->request != NULL);
        }
    int left = 2 * pairs * IN_FLIGHT;
    double deadline = now() + TIMEOUT;
    while (left > 0) {
        CHECK(now() < deadline);
        for (int at = IN_FLIGHT - 1; at >= 0; at--)
            for (int number = 0; number < 2 * pairs; number++) {
                int pair = number / 2, done = 0, size = -1;
                struct message *message = number % 2 ? &sent[pair][at] : &received[pair][at];
                if (message->request == NULL)
                    continue;
                OK(plugin.test(message->request, &done, &size));
                if (!done)
                    continue;
                CHECK(size == (int)message->size);
                CHECK(are_bytes(message->data, message->size, at + pair) && message->data[message->size] == 0xcd);
                message->request = NULL;
                free(message->data);
                left--;
            }
        idle();
    }
}

/* Connections in both directions at once; a message that is too long ends in an error. */
static void messages(void)
{
    void *to_other[3], *from_other[3], *request = NULL, *flushed = &request;
    char name[64], byte = 0, *data = allocate(2000);
    int sizes[1] = {1}, size = 0;
    for (int at = 0; at < 3; at++)
        for (int from = 0; from < 2; from++) {
            snprintf(name, sizeof name, "messages-%d-%d", at, from);
            void *comm = pair(name, from, 1 - from);
            *(rank == from ? &to_other[at] : &from_other[at]) = comm;
        }
    for (int round = 0; round < 3; round++)
        exchange_messages(to_other, from_other, 3);
    void *datas[1] = {&byte};
    OK(plugin.flush_net(from_other[0], 1, datas, sizes, NULL, &flushed));
    CHECK(flushed == NULL);
    CHECK(plugin.isend(from_other[0], &byte, 1, NULL, &request) == INVALID_USAGE);
    CHECK(plugin.irecv(to_other[0], &byte, 1, NULL, &request) == INVALID_USAGE);
    CHECK(plugin.isend(to_other[0], NULL, 1, NULL, &request) == INVALID_ARGUMENT);
    CHECK(plugin.isend(to_other[0], &byte, (size_t)-1, NULL, &request) == INVALID_ARGUMENT);
    if (rank == 0) {
        OK(plugin.isend(to_other[2], data, 2000, NULL, &request));
        while (plugin.test(request, sizes, &size) == SUCCESS && !sizes[0] && !appeared("too-long"))
            idle();
    } else {
        /* The header may have arrived before. */
        int result = plugin.irecv(from_other[2], data, 1999, NULL, &request);
        CHECK((result != SUCCESS ? result : test_until(plugin.test, request, &size)) == INTERNAL_ERROR);
        CHECK(plugin.irecv(from_other[2], data, 1999, NULL, &request) == INTERNAL_ERROR);
    }
    for (int at = 0; at < 3; at++) {
        OK(plugin.close_recv(from_other[at]));
        OK(plugin.close_send(to_other[at]));
    }
    free(data);
}

/* More connections at once than a connection to the daemon has jobs. */
static void many(void)
{
    enum { PAIRS = 20 };
    void *listeners[PAIRS] = {NULL}, *comms[PAIRS] = {NULL}, *requests[PAIRS] = {NULL};
    char own[PAIRS][HANDLE_BYTES], all[2][PAIRS][HANDLE_BYTES];
    int left = PAIRS, size = 0;
    double deadline = now() + TIMEOUT;
    /* Rank 0 receives on the even ones, rank 1 on the odd ones. */
    for (int at = 0; at < PAIRS; at++)
        OK(plugin.listen(own[at], &listeners[at]));
    exchange("many", own, sizeof own, all);
    while (left > 0) {
        CHECK(now() < deadline);
        left = 0;
        for (int at = 0; at < PAIRS; at++) {
            if (comms[at] == NULL && at % 2 == rank)
                OK(plugin.accept(listeners[at], &comms[at], NULL));
            else if (comms[at] == NULL)
                OK(plugin.connect(all[1 - rank][at], &comms[at]));
            left += comms[at] == NULL;
        }
        idle();
    }
    for (int at = 0; at < PAIRS; at++)
        if (at % 2 == rank)
            OK(plugin.irecv(comms[at], own[at], HANDLE_BYTES, NULL, &requests[at]));
        else
            OK(plugin.isend(comms[at], own[at], HANDLE_BYTES, NULL, &requests[at]));
    for (int at = PAIRS - 1; at >= 0; at--) {
        OK(test_until(plugin.test, requests[at], &size));
        CHECK(size == HANDLE_BYTES);
        CHECK(at % 2 != rank || memcmp(own[at], all[1 - rank][at], HANDLE_BYTES) == 0);
    }
    for (int at = 0; at < PAIRS; at++) {
        OK(plugin.close_listen(listeners[at]));
        OK(at % 2 == rank ? plugin.close_recv(comms[at]) : plugin.close_send(comms[at]));
    }
}

/* Many small calls, a dozen in flight on a communicator. */
static void small(long count)
{
    enum { ELEMENTS = 16 };
    void *comm = join("small"), *requests[IN_FLIGHT] = {NULL};
    int32_t send[IN_FLIGHT][ELEMENTS], recv[IN_FLIGHT][ELEMENTS];
    double start = now();
    for (long at = 0; at < count + IN_FLIGHT; at++) {
        int slot = (int)(at % IN_FLIGHT);
        if (at >= IN_FLIGHT) {
            wait_coll(requests[slot]);
            int32_t number = (int32_t)((at - IN_FLIGHT) % 1000000);
            for (int element = 0; element < ELEMENTS; element++)
                CHECK(recv[slot][element] == world * (number + element) + world * (world - 1) / 2);
        }
        if (at >= count)
            continue;
        for (int element = 0; element < ELEMENTS; element++)
            send[slot][element] = (int32_t)(at % 1000000) + element + rank;
        OK(plugin.iallreduce(comm, send[slot], recv[slot], ELEMENTS, INT32, SUM, NULL, &requests[slot]));
        CHECK(requests[slot] != NULL);
    }
    double seconds = now() - start;
    printf("rank %d: %ld small sums in %.1f s, %.0f/s\n", rank, count, seconds, (double)count / seconds);
    OK(plugin.close_coll(comm));

    void *sending = pair("small-pair", 0, 1);
    start = now();
    for (long at = 0; at < count + IN_FLIGHT && sending != NULL; at++) {
        int slot = (int)(at % IN_FLIGHT), size = 0;
        if (at >= IN_FLIGHT) {
            OK(test_until(plugin.test, requests[slot], &size));
            CHECK(size == 8 && (rank == 0 || recv[slot][0] == (int32_t)(at - IN_FLIGHT)));
        }
        if (at >= count)
            continue;
        send[slot][0] = (int32_t)at;
        OK(rank == 0 ? plugin.isend(sending, send[slot], 8, NULL, &requests[slot])
                     : plugin.irecv(sending, recv[slot], sizeof recv[slot], NULL, &requests[slot]));
        CHECK(requests[slot] != NULL);
    }
    seconds = now() - start;
    if (sending != NULL) {
        printf("rank %d: %ld small messages in %.1f s, %.0f/s\n", rank, count, seconds, (double)count / seconds);
        OK(rank == 0 ? plugin.close_send(sending) : plugin.close_recv(sending));
    }
}

/* Closes communicators with requests on their way; other communicators, and later ones, work. */
static void aborts(void)
{
    void *comm = join("aborted"), *other = join("other"), *request = NULL, *again = NULL;
    void *connection = pair("aborted-pair", 1, 0);
    struct reduction reductions[IN_FLIGHT];
    char byte = 0;
    int done = 0, all[64];
    exchange("opened", &done, sizeof done, all);
    if (rank == 0) {
        for (int at = 0; at < IN_FLIGHT; at++)
            begin(comm, NULL, &reductions[at], at, 3000);
        OK(plugin.irecv(connection, &byte, 1, NULL, &request));
        OK(plugin.irecv(connection, &byte, 1, NULL, &again));
        OK(plugin.close_coll(comm));
        OK(plugin.close_recv(connection));
        CHECK(plugin.test_coll(reductions[0].request, &done, NULL) == INVALID_ARGUMENT);
        CHECK(plugin.test(request, &done, NULL) == INVALID_ARGUMENT);
        CHECK(plugin.close_coll(comm) == INVALID_ARGUMENT);
        CHECK(plugin.close_recv(connection) == INVALID_ARGUMENT);
        exchange("closed", &done, sizeof done, all);
    } else {
        exchange("closed", &done, sizeof done, all);
        double start = now();
        int result = plugin.iallreduce(comm, &byte, &byte, 0, FLOAT32, SUM, NULL, &request);
        CHECK(result == SUCCESS);
        wait_coll(request);
        int32_t value = 1;
        result = plugin.iallreduce(comm, &value, &value, 1, INT32, SUM, NULL, &request);
        if (result == SUCCESS)
            result = test_until(plugin.test_coll, request, NULL);
        CHECK(result == REMOTE_ERROR);
        CHECK(plugin.iallreduce(comm, &value, &value, 1, INT32, SUM, NULL, &request) == REMOTE_ERROR);
        OK(plugin.close_coll(comm));
        if (connection != NULL) {
            while ((result = plugin.isend(connection, &byte, 1, NULL, &request)) == SUCCESS
                   && (result = test_until(plugin.test, request, NULL)) == SUCCESS)
                idle();
            CHECK(result == REMOTE_ERROR);
            OK(plugin.close_send(connection));
        }
        printf("rank %d: aborted after %.1f s\n", rank, now() - start);
    }
    reduce_on(&other, 1, 100);
    OK(plugin.close_coll(other));
    other = join("after");
    reduce_on(&other, 1, 100);
    OK(plugin.close_coll(other));
}

/* A daemon dies; the requests of all ranks end in errors, and the process goes on. */
static void death(void)
{
    void *comm = join("death"), *connection = pair("death-pair", 0, 1), *request = NULL, *message = NULL;
    float value = 1;
    char byte = 0;
    int result = SUCCESS, ready = 1, all[64];
    exchange("ready", &ready, sizeof ready, all);
    double start = now();
    while (result == SUCCESS) {
        if (!appeared("killed"))
            start = now();
        result = plugin.iallreduce(comm, &value, &value, 1, FLOAT32, MAX, NULL, &request);
        if (result == SUCCESS)
            result = test_until(plugin.test_coll, request, NULL);
    }
    double seconds = now() - start;
    CHECK(result == SYSTEM_ERROR || result == REMOTE_ERROR);
    if (connection != NULL) {
        result = rank == 0 ? plugin.isend(connection, &byte, 1, NULL, &message)
                           : plugin.irecv(connection, &byte, 1, NULL, &message);
        if (result == SUCCESS)
            result = test_until(plugin.test, message, NULL);
        CHECK(result == SYSTEM_ERROR || result == REMOTE_ERROR);
        OK(rank == 0 ? plugin.close_send(connection) : plugin.close_recv(connection));
    }
    OK(plugin.close_coll(comm));
    printf("rank %d: an error %d after %.1f s\n", rank, result, seconds);
    while (!appeared("restarted"))
        idle();
    comm = join("after-death");
    reduce_on(&comm, 1, 100);
    OK(plugin.close_coll(comm));
}

/* NaN is carried, and ends no job; more requests than slots are deferred; a sum out of range is an error. */
static void values(void)
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

/* The ranks are not the same number at each daemon: they do not join, and NCCL goes on without the collective network. */
static void uneven(void)
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

/* Properties, supported reductions, registrations, wrong arguments. */
static void basics(void)
{
    int supported, done;
    void *mhandle = NULL, *comm = join("basics"), *request = NULL, *none = NULL;
    char handle[HANDLE_BYTES] = {0}, byte = 0;
    plugin.check_properties();
    for (int type = INT8; type <= 12; type++)
        for (int op = SUM; op <= 6; op++) {
            bool has_type = type == FLOAT32 || type == FLOAT16 || type == BFLOAT16 || type == INT32;
            OK(plugin.reduce_support(type, op, &supported));
            CHECK(supported == (has_type && (op == SUM || op == MIN || op == MAX)));
        }
    CHECK(plugin.reg_coll(comm, &byte, 1, PTR_CUDA, &mhandle) == INVALID_USAGE && mhandle == NULL);
    CHECK(plugin.reg_mr_dma_buf(comm, &byte, 1, PTR_CUDA, 0, -1, &mhandle) == INVALID_USAGE);
    OK(plugin.reg_coll(comm, &byte, 1, PTR_HOST, &mhandle));
    OK(plugin.dereg_coll(comm, mhandle));
    CHECK(plugin.dereg_coll(comm, mhandle) == INVALID_ARGUMENT);
    CHECK(plugin.iallreduce(comm, &byte, &byte, 1, FLOAT64, SUM, NULL, &request) == INVALID_USAGE);
    CHECK(plugin.iallreduce(comm, &byte, &byte, 1, FLOAT32, AVG, NULL, &request) == INVALID_USAGE);
    CHECK(plugin.iallreduce(&byte, &byte, &byte, 1, FLOAT32, SUM, NULL, &request) == INVALID_ARGUMENT);
    CHECK(plugin.iallreduce(comm, NULL, &byte, 1, FLOAT32, SUM, NULL, &request) == INVALID_ARGUMENT);
    CHECK(plugin.test(&byte, &done, NULL) == INVALID_ARGUMENT);
    CHECK(plugin.isend(comm, &byte, 1, NULL, &request) == INVALID_ARGUMENT);
    CHECK(plugin.close_send(comm) == INVALID_ARGUMENT && plugin.close_listen(comm) == INVALID_ARGUMENT);
    CHECK(plugin.connect(handle, &none) == INVALID_USAGE && none == NULL);
    CHECK(plugin.listen(NULL, &none) == INVALID_ARGUMENT);
    request = comm;
    OK(plugin.flush_coll(comm, &byte, 1, NULL, &request));
    CHECK(request == NULL);
    OK(plugin.listen(handle, &none));
    OK(plugin.close_listen(none));
    CHECK(plugin.close_listen(none) == INVALID_ARGUMENT);
    /* A connection that its listener gives up. */
    void *accepted = NULL;
    OK(plugin.listen(handle, &none));
    OK(plugin.accept(none, &accepted, NULL));
    CHECK(accepted == NULL);
    OK(plugin.close_listen(none));
    OK(plugin.close_coll(comm));
    OK(plugin.finalize());
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 2 ? argv[2] : "";
    rank = atoi(getenv("RANK"));
    world = atoi(getenv("WORLD"));
    load(argv[1], atoi(getenv("VERSION")));
    if (strcmp(scenario, "absent") == 0) {
        CHECK(plugin.init() == SYSTEM_ERROR);
        return 0;
    }
    OK(plugin.init());
    if (strcmp(scenario, "small") == 0)
        small(argc > 3 ? atol(argv[3]) : 1000);
    else if (strcmp(scenario, "basics") == 0)
        basics();
    else if (strcmp(scenario, "sums") == 0)
        sums();
    else if (strcmp(scenario, "large") == 0)
        large();
    else if (strcmp(scenario, "windows") == 0)
        windows();
    else if (strcmp(scenario, "messages") == 0)
        messages();
    else if (strcmp(scenario, "values") == 0)
        values();
    else if (strcmp(scenario, "uneven") == 0)
        uneven();
    else if (strcmp(scenario, "many") == 0)
        many();
    else if (strcmp(scenario, "aborts") == 0)
        aborts();
    else if (strcmp(scenario, "death") == 0)
        death();
    else
        CHECK(!"a known scenario");
    OK(plugin.finalize());
    printf("rank %d: passed\n", rank);
    return 0;
}
