/* The plugin as NCCL's proxy thread uses it: proxy LIBRARY SCENARIO [COUNT]. RANK, WORLD, VERSION and
 * EXCHANGE, a folder that all ranks have, are in the environment. The other ranks run the same program. */
#include "scenarios.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"

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
                CHECK(are_bytes(message->data, message->size, at + pair) &&
                      message->data[message->size] == 0xcd);
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
        printf("rank %d: %ld small messages in %.1f s, %.0f/s\n", rank, count, seconds,
               (double)count / seconds);
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
            while ((result = plugin.isend(connection, &byte, 1, NULL, &request)) == SUCCESS &&
                   (result = test_until(plugin.test, request, NULL)) == SUCCESS)
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
    else if (strcmp(scenario, "job-fails") == 0)
        aggregator_dies(false);
    else if (strcmp(scenario, "job-goes-on") == 0)
        aggregator_dies(true);
    else
        CHECK(!"a known scenario");
    OK(plugin.finalize());
    printf("rank %d: passed\n", rank);
    return 0;
}
