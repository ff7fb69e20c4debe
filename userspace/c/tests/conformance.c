/* Every function of libsumac, as one of two workers: RANK, WORLD_SIZE=2, SUMAC_SOCKET. The other worker runs the same program. */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sumac.h>

#define COUNT 5000
#define MINUTE 60000

static uint32_t rank;
static const uint32_t world = 2;
static sumac_client *client;

#define CHECK(condition) \
    do { \
        if (!(condition)) \
            fail(__LINE__, #condition); \
    } while (0)
#define OK(call) CHECK((call) == SUMAC_OK)

static void fail(int line, const char *what)
{
    const sumac_error *error = sumac_last_error();
    fprintf(stderr, "conformance.c:%d: rank %u: %s; last error: %s\n", line, rank, what,
            error == NULL ? "none" : error->message);
    exit(1);
}

static sumac_job *join(const char *name, sumac_mode mode, sumac_order order)
{
    sumac_job_options options;
    sumac_job *job = NULL;
    OK(sumac_job_options_init(&options, sizeof options));
    options.mode = mode;
    options.order = order;
    options.timeout_ms = MINUTE;
    OK(sumac_open(client, name, rank, world, &options, &job));
    return job;
}

static void *allocate(size_t size)
{
    void *memory = NULL;
    OK(sumac_alloc(client, size, &memory));
    return memory;
}

static void versions(void)
{
    CHECK(strcmp(sumac_version(), SUMAC_VERSION) == 0);
    CHECK(sumac_abi_version() == SUMAC_ABI_VERSION);
    sumac_client *none = NULL;
    CHECK(sumac_connect(NULL, SUMAC_ABI_VERSION + 1, &none) == SUMAC_ERR_ABI_VERSION);
    CHECK(sumac_connect(NULL, SUMAC_ABI_VERSION + 0x10000, &none) == SUMAC_ERR_ABI_VERSION);
    CHECK(none == NULL && sumac_last_error()->code == SUMAC_ERR_ABI_VERSION);
    CHECK(strstr(sumac_last_error()->message, "compiled for ABI 1.") != NULL);
    CHECK(sumac_last_error()->hint != NULL);
}

static void errors(void)
{
    sumac_client *none = NULL;
    CHECK(sumac_last_error() == NULL);
    CHECK(strcmp(sumac_strerror(SUMAC_OK), "success") == 0);
    CHECK(strcmp(sumac_strerror((sumac_status)12345), "not a status of libsumac") == 0);
    CHECK(sumac_connect("/no/such.sock", SUMAC_ABI_VERSION, &none) == SUMAC_ERR_CONNECTION);
    CHECK(strstr(sumac_last_error()->message, "/no/such.sock") != NULL);
    CHECK(sumac_connect("\xff", SUMAC_ABI_VERSION, &none) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_connect(NULL, SUMAC_ABI_VERSION, NULL) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_close(NULL) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(sumac_close((sumac_client *)&none) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(sumac_last_error()->ranks == NULL && sumac_last_error()->rank_count == 0);
    CHECK(sumac_last_error()->index == SUMAC_NO_INDEX && sumac_last_error()->tensor == NULL);
}

static void memory(void)
{
    char *block = allocate(100), *other = allocate(1 << 20);
    char on_stack;
    CHECK(block != other && block[0] == 0 && other[(1 << 20) - 1] == 0);
    CHECK(sumac_free(client, block + 1) == SUMAC_ERR_NOT_REGISTERED);
    CHECK(sumac_free(client, &on_stack) == SUMAC_ERR_NOT_REGISTERED);
    CHECK(sumac_alloc(client, 1, NULL) == SUMAC_ERR_INVALID_ARGUMENT);
    void *none = NULL;
    CHECK(sumac_alloc(client, SIZE_MAX, &none) == SUMAC_ERR_MEMORY && none == NULL);
    OK(sumac_free(client, block));
    CHECK(sumac_free(client, block) == SUMAC_ERR_NOT_REGISTERED);
    OK(sumac_free(client, other));
    OK(sumac_free(client, NULL));
}

/* Structures of programs that know fewer members, or more. */
static void sizes(void)
{
    struct {
        sumac_job_options known;
        uint64_t later;
    } future;
    sumac_job *job = NULL;
    OK(sumac_job_options_init(&future.known, sizeof future));
    CHECK(future.known.size == sizeof future && future.later == 0);
    future.later = 1;
    CHECK(sumac_open(client, "sizes", 0, 1, &future.known, &job) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(strstr(sumac_last_error()->message, "does not know") != NULL);
    future.known.size = 0;
    CHECK(sumac_open(client, "sizes", 0, 1, &future.known, &job) == SUMAC_ERR_INVALID_ARGUMENT);
    future.known.size = SIZE_MAX;
    CHECK(sumac_open(client, "sizes", 0, 1, &future.known, &job) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_job_options_init(&future.known, 1) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_job_options_init(NULL, sizeof future) == SUMAC_ERR_INVALID_ARGUMENT);

    sumac_job_options wrong;
    OK(sumac_job_options_init(&wrong, sizeof wrong));
    wrong.mode = (sumac_mode)99;
    CHECK(sumac_open(client, "sizes", 0, 1, &wrong, &job) == SUMAC_ERR_INVALID_ARGUMENT);
    wrong.mode = SUMAC_MODE_DEFAULT;
    wrong.elements = 70000;
    CHECK(sumac_open(client, "sizes", 0, 1, &wrong, &job) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_open(client, NULL, 0, 1, NULL, &job) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_open(client, "sizes", 3, 2, NULL, &job) == SUMAC_ERR_BAD_FIELD);
    CHECK(sumac_attach(client, "no such job", NULL, &job) == SUMAC_ERR_UNKNOWN_JOB && job == NULL);
    CHECK(sumac_attach_rank(client, "no such job", 1, NULL, &job) == SUMAC_ERR_UNKNOWN_JOB && job == NULL);
    CHECK(sumac_attach_rank(client, "no such job", 65536, NULL, &job) == SUMAC_ERR_INVALID_ARGUMENT);

    /* A program that was compiled when `size` and `secret` were all members, beside one with more that are zero. */
    struct {
        size_t size;
        const char *secret;
    } past = {sizeof past, NULL};
    if (rank == 0) {
        OK(sumac_open(client, "past", 0, 1, (const sumac_job_options *)&past, &job));
    } else {
        future.later = 0;
        future.known.size = sizeof future;
        future.known.mode = SUMAC_MODE_DIRECT; /* The other worker's job may have all slots. */
        OK(sumac_open(client, "future", 0, 1, &future.known, &job));
    }
    OK(sumac_job_close(job));
}

static void fill(float *values)
{
    for (size_t i = 0; i < COUNT; i++)
        values[i] = (float)(i % 7) + (float)rank;
}

static void collectives(sumac_job *job)
{
    uint32_t number = 99;
    OK(sumac_rank(job, &number));
    CHECK(number == rank);
    OK(sumac_world(job, &number));
    CHECK(number == world);

    float *send = allocate(COUNT * sizeof *send), *recv = allocate(COUNT * sizeof *recv);
    const struct {
        sumac_reduction reduction;
        float factor, summand;
    } reductions[] = {{SUMAC_SUM, 2, 1}, {SUMAC_MEAN, 1, 0.5f}, {SUMAC_MIN, 1, 0}, {SUMAC_MAX, 1, 1}};
    for (size_t at = 0; at < 4; at++) {
        fill(send);
        OK(sumac_allreduce(job, send, recv, COUNT, SUMAC_FLOAT32, reductions[at].reduction, NULL));
        for (size_t i = 0; i < COUNT; i++) {
            float expected = reductions[at].factor * (float)(i % 7) + reductions[at].summand;
            CHECK(fabsf(recv[i] - expected) < 1e-5f);
            CHECK(send[i] == (float)(i % 7) + (float)rank);
        }
    }
    OK(sumac_allreduce(job, send, send, COUNT, SUMAC_FLOAT32, SUMAC_SUM, NULL));
    CHECK(fabsf(send[COUNT - 1] - 2 * ((COUNT - 1) % 7) - 1) < 1e-5f);

    int32_t *whole = (int32_t *)send;
    whole[0] = rank == 0 ? -7 : 9;
    OK(sumac_allreduce(job, whole, whole, 1, SUMAC_INT32, SUMAC_SUM, NULL));
    CHECK(whole[0] == 2);
    uint16_t *half = (uint16_t *)send;
    half[0] = rank == 0 ? 0x3c00 : 0x4000; /* 1.0 and 2.0 */
    OK(sumac_allreduce(job, half, half, 1, SUMAC_FLOAT16, SUMAC_SUM, NULL));
    CHECK(half[0] == 0x4200);
    half[0] = rank == 0 ? 0x3f80 : 0x4000;
    OK(sumac_allreduce(job, half, half, 1, SUMAC_BFLOAT16, SUMAC_SUM, NULL));
    CHECK(half[0] == 0x4040);
    OK(sumac_allreduce(job, send, recv, 0, SUMAC_FLOAT32, SUMAC_SUM, NULL));

    fill(send);
    OK(sumac_broadcast(job, send, COUNT, SUMAC_FLOAT32, 1, NULL));
    CHECK(send[3] == 4 && send[COUNT - 1] == (COUNT - 1) % 7 + 1);

    fill(send);
    recv[3] = -1;
    OK(sumac_reduce(job, send, rank == 1 ? recv : NULL, COUNT, SUMAC_FLOAT32, SUMAC_SUM, 1, NULL));
    CHECK(fabsf(recv[3] - (rank == 1 ? 7.0f : -1.0f)) < 1e-5f && send[3] == 3 + (float)rank);

    const size_t block = COUNT / 2;
    OK(sumac_reduce_scatter(job, send, recv, block, SUMAC_FLOAT32, SUMAC_SUM, NULL));
    for (size_t i = 0; i < block; i++)
        CHECK(fabsf(recv[i] - (2 * (float)((rank * block + i) % 7) + 1)) < 1e-5f);
    OK(sumac_reduce_scatter(job, send, send + rank * block, block, SUMAC_FLOAT32, SUMAC_SUM, NULL));
    CHECK(memcmp(send + rank * block, recv, block * sizeof *recv) == 0);
    size_t others = (1 - rank) * block;
    CHECK(send[others] == (float)(others % 7) + (float)rank);

    for (size_t i = 0; i < block; i++)
        send[i] = (float)(rank * block + i);
    OK(sumac_allgather(job, send, recv, block, SUMAC_FLOAT32, NULL));
    for (size_t i = 0; i < COUNT; i++)
        CHECK(recv[i] == (float)i);
    memset(recv + others, 0, block * sizeof *recv);
    OK(sumac_allgather(job, recv + rank * block, recv, block, SUMAC_FLOAT32, NULL));
    for (size_t i = 0; i < COUNT; i++)
        CHECK(recv[i] == (float)i);
    OK(sumac_barrier(job));
    OK(sumac_free(client, send));
    OK(sumac_free(client, recv));
}

/* Results in memory that the ranks of a host share. Two ranks of one host come together in one job. */
static void shared(sumac_job *job)
{
    float *send = allocate(COUNT * sizeof *send);
    void *memory = NULL, *none = NULL;
    OK(sumac_alloc_shared(job, COUNT * sizeof(float), &memory));
    const float *result = memory;
    fill(send);
    CHECK(result[COUNT - 1] == 0);
    OK(sumac_allreduce(job, send, memory, COUNT, SUMAC_FLOAT32, SUMAC_SUM, NULL));
    for (size_t i = 0; i < COUNT; i++)
        CHECK(fabsf(result[i] - (2 * (float)(i % 7) + 1)) < 1e-5f);
    OK(sumac_allgather(job, send, memory, COUNT / 2, SUMAC_FLOAT32, NULL));
    CHECK(result[3] == 3 && result[COUNT / 2 + 3] == 4);
    CHECK(sumac_allreduce(job, memory, memory, COUNT, SUMAC_FLOAT32, SUMAC_SUM, NULL)
          == SUMAC_ERR_UNSUPPORTED);
    CHECK(sumac_alloc_shared(job, 1, NULL) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_alloc_shared(NULL, 1, &none) == SUMAC_ERR_INVALID_HANDLE && none == NULL);
    OK(sumac_free(client, memory));
    CHECK(sumac_free(client, memory) == SUMAC_ERR_NOT_REGISTERED);
    OK(sumac_free(client, send));
}

static void asynchronous(sumac_job *job)
{
    float *values = allocate(5 * COUNT * sizeof *values);
    float *at[5];
    sumac_request *requests[5];
    sumac_op_options options;
    OK(sumac_op_options_init(&options, sizeof options));
    options.priority = 3;
    for (size_t i = 0; i < 5; i++) {
        at[i] = values + i * COUNT;
        fill(at[i]);
    }
    OK(sumac_allreduce_async(job, at[0], at[0], COUNT, SUMAC_FLOAT32, SUMAC_SUM, &options, &requests[0]));
    OK(sumac_broadcast_async(job, at[1], COUNT, SUMAC_FLOAT32, 0, NULL, &requests[1]));
    OK(sumac_reduce_async(job, at[2], at[2], COUNT, SUMAC_FLOAT32, SUMAC_MAX, 0, NULL, &requests[2]));
    OK(sumac_reduce_scatter_async(job, at[3], at[3] + rank * (COUNT / 2), COUNT / 2, SUMAC_FLOAT32, SUMAC_SUM, NULL, &requests[3]));
    OK(sumac_allgather_async(job, at[4] + rank * (COUNT / 2), at[4], COUNT / 2, SUMAC_FLOAT32, NULL, &requests[4]));

    struct pollfd event = {.events = POLLIN};
    OK(sumac_event_fd(job, &event.fd));
    CHECK(poll(&event, 1, MINUTE) == 1);
    int done = 0;
    sumac_completion completion = {.size = sizeof completion};
    while (!done)
        OK(sumac_test(requests[4], &done, &completion));
    CHECK(completion.size == sizeof completion && completion.duration_ns > 0 && completion.missing == 0);
    CHECK(sumac_test(requests[4], &done, NULL) == SUMAC_ERR_INVALID_HANDLE);
    for (size_t i = 0; i < 4; i++)
        OK(sumac_wait(requests[i], SUMAC_NO_TIMEOUT, NULL));
    CHECK(sumac_wait(requests[0], 0, NULL) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(fabsf(at[0][3] - 7) < 1e-5f && at[1][3] == 3);
    CHECK(fabsf(at[2][3] - (rank == 0 ? 4.0f : 3.0f + (float)rank)) < 1e-5f);
    OK(sumac_free(client, values));
}

static void misuse(sumac_job *job)
{
    float *values = allocate(64), on_stack[4];
    sumac_request *request = NULL;
    CHECK(sumac_allreduce(NULL, values, values, 4, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(sumac_allreduce((sumac_job *)client, values, values, 4, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(sumac_allreduce(job, NULL, values, 4, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_NOT_REGISTERED);
    CHECK(sumac_allreduce(job, on_stack, on_stack, 4, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_NOT_REGISTERED);
    CHECK(sumac_allreduce(job, values, values, 17, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_NOT_REGISTERED);
    CHECK(sumac_allreduce(job, values, values, SIZE_MAX / 2, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_allreduce(job, (char *)values + 1, (char *)values + 1, 4, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_MISALIGNED);
    CHECK(sumac_allreduce(job, values, values + 1, 4, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_OUT_OF_RANGE);
    CHECK(sumac_allreduce(job, values, values, 4, (sumac_dtype)0, SUMAC_SUM, NULL) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_allreduce(job, values, values, 4, SUMAC_FLOAT32, (sumac_reduction)5, NULL) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_allreduce_async(job, values, values, 4, SUMAC_FLOAT32, SUMAC_SUM, NULL, NULL) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_broadcast(job, values, 4, SUMAC_FLOAT32, 2, NULL) == SUMAC_ERR_BAD_FIELD);
    CHECK(sumac_broadcast(job, values, 4, SUMAC_FLOAT32, 70000, NULL) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_post_send(job, values, 4, SUMAC_FLOAT32, 1 - rank, NULL, &request) == SUMAC_ERR_UNSUPPORTED);
    CHECK(sumac_wait(NULL, 0, NULL) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(sumac_cancel((sumac_request *)job) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(sumac_rank(job, NULL) == SUMAC_ERR_INVALID_ARGUMENT && request == NULL);
    sumac_op_options options;
    OK(sumac_op_options_init(&options, sizeof options));
    options.priority = 8;
    CHECK(sumac_allreduce(job, values, values, 4, SUMAC_FLOAT32, SUMAC_SUM, &options) == SUMAC_ERR_BAD_FIELD);
    OK(sumac_free(client, values));
}

/* A value that is not finite fails the operation on all workers, with the element; the job goes on. */
static void saturation(sumac_job *job)
{
    float *values = allocate(COUNT * sizeof *values);
    fill(values);
    if (rank == 1)
        values[5] = NAN;
    CHECK(sumac_allreduce(job, values, values, COUNT, SUMAC_FLOAT32, SUMAC_SUM, NULL) == SUMAC_ERR_SATURATED);
    const sumac_error *error = sumac_last_error();
    CHECK(error->code == SUMAC_ERR_SATURATED && error->index <= 5 && error->index_end > 5);
    if (rank == 1)
        CHECK(error->rank_count == 1 && error->ranks[0] == 1 && error->tensor != NULL && error->index == 5);
    OK(sumac_barrier(job));
    OK(sumac_free(client, values));
}

static void transfers(void)
{
    sumac_job *job = join("transfers", SUMAC_MODE_DIRECT, SUMAC_ORDER_DEFAULT);
    float *values = allocate(COUNT * sizeof *values);
    sumac_request *request = NULL;
    sumac_op_options named;
    sumac_recv_options keep;
    OK(sumac_op_options_init(&named, sizeof named));
    OK(sumac_recv_options_init(&keep, sizeof keep));
    keep.missing = SUMAC_MISSING_KEEP;
    named.name = "not for transfers";
    CHECK(sumac_post_send(job, values, 1, SUMAC_FLOAT32, 1 - rank, &named, &request) == SUMAC_ERR_INVALID_ARGUMENT);
    CHECK(sumac_post_send(job, values, 1, SUMAC_FLOAT32, rank, NULL, &request) == SUMAC_ERR_BAD_FIELD);
    if (rank == 0) {
        /* Nothing is sent before the barrier, so this request is outstanding. */
        OK(sumac_post_recv(job, values, COUNT, SUMAC_FLOAT32, 1, &keep, &request));
        CHECK(sumac_wait(request, 1, NULL) == SUMAC_ERR_TIMEOUT);
        int done = 1;
        OK(sumac_test(request, &done, NULL));
        CHECK(done == 0);
        CHECK(sumac_free(client, values) == SUMAC_ERR_REGION_BUSY);
        CHECK(sumac_job_close(job) == SUMAC_ERR_JOB_BUSY);
        OK(sumac_barrier(job));
        OK(sumac_wait(request, MINUTE, NULL));
        CHECK(values[10] == 4 && values[COUNT - 1] == (COUNT - 1) % 7 + 1);
    } else {
        fill(values);
        OK(sumac_barrier(job));
        OK(sumac_post_send(job, values, COUNT, SUMAC_FLOAT32, 0, NULL, &request));
        OK(sumac_wait(request, MINUTE, NULL));
    }
    OK(sumac_job_close(job));
    CHECK(sumac_job_close(job) == SUMAC_ERR_INVALID_HANDLE);
    OK(sumac_free(client, values));
}

/* Rank 0 has the blocks and contributes nothing. */
static void servers(void)
{
    sumac_job_options options;
    sumac_job *job = NULL;
    float *gradients = allocate(COUNT * sizeof *gradients);
    float *weights = allocate(COUNT * sizeof *weights);
    OK(sumac_job_options_init(&options, sizeof options));
    options.mode = SUMAC_MODE_DIRECT;
    options.timeout_ms = MINUTE;
    options.servers = world;
    CHECK(sumac_open(client, "servers", rank, world, &options, &job) == SUMAC_ERR_BAD_FIELD);
    options.servers = 1;
    OK(sumac_open(client, "servers", rank, world, &options, &job));
    if (rank > 0)
        fill(gradients);
    OK(sumac_reduce_scatter(job, gradients, rank == 0 ? gradients : NULL, COUNT, SUMAC_FLOAT32, SUMAC_SUM, NULL));
    CHECK(gradients[10] == 4 && gradients[COUNT - 1] == (COUNT - 1) % 7 + 1);
    for (size_t i = 0; rank == 0 && i < COUNT; i++)
        weights[i] = 2 * gradients[i];
    OK(sumac_allgather(job, rank == 0 ? weights : NULL, weights, COUNT, SUMAC_FLOAT32, NULL));
    CHECK(weights[10] == 8 && weights[COUNT - 1] == 2 * ((COUNT - 1) % 7 + 1));
    OK(sumac_barrier(job));
    OK(sumac_job_close(job));
    OK(sumac_free(client, gradients));
    OK(sumac_free(client, weights));
}

struct thread {
    pthread_t id;
    sumac_job *job;
    float *values;
    int number;
};

static void *train(void *argument)
{
    struct thread *thread = argument;
    CHECK(sumac_last_error() == NULL); /* Each thread has its own. */
    for (int step = 0; step < 20; step++) {
        char name[32];
        snprintf(name, sizeof name, "thread %d step %d", thread->number, step);
        sumac_op_options options;
        OK(sumac_op_options_init(&options, sizeof options));
        options.name = name;
        thread->values[0] = (float)(thread->number * 1000 + step);
        OK(sumac_allreduce(thread->job, thread->values, thread->values, 1, SUMAC_FLOAT32, SUMAC_SUM, &options));
        CHECK(thread->values[0] == (float)(2 * (thread->number * 1000 + step)));
    }
    return NULL;
}

/* Threads share the client and a job whose operations have names. */
static void threads(void)
{
    sumac_job *job = join("threads", SUMAC_MODE_STATIC, SUMAC_ORDER_NAME);
    float *values = allocate(4 * 64);
    struct thread all[4];
    for (int i = 0; i < 4; i++) {
        int number = rank == 0 ? i : 3 - i;
        all[i] = (struct thread){.job = job, .values = values + 16 * i, .number = number};
        CHECK(pthread_create(&all[i].id, NULL, train, &all[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(all[i].id, NULL) == 0);
    OK(sumac_barrier(job));
    OK(sumac_job_close(job));
    OK(sumac_free(client, values));
}

/* Rank 1 cancels its request, which ends the job on both; rank 0's error names rank 1. Rank 0 sends when its own
   request is there: after a barrier alone, rank 1 might end the job before rank 0 has posted anything. */
static void cancelled(void)
{
    sumac_job *job = join("cancelled", SUMAC_MODE_DIRECT, SUMAC_ORDER_DEFAULT);
    float *values = allocate(128);
    float *message = values + 16;
    message[0] = 1;
    sumac_request *posted = NULL;
    sumac_request *request = NULL;
    if (rank == 1) {
        OK(sumac_post_recv(job, message, 1, SUMAC_FLOAT32, 0, NULL, &posted));
        OK(sumac_wait(posted, MINUTE, NULL));
        OK(sumac_post_recv(job, values, 1, SUMAC_FLOAT32, 0, NULL, &request));
        OK(sumac_cancel(request));
        CHECK(sumac_wait(request, MINUTE, NULL) == SUMAC_ERR_CANCELLED);
    } else {
        OK(sumac_post_recv(job, values, 1, SUMAC_FLOAT32, 1, NULL, &request));
        OK(sumac_post_send(job, message, 1, SUMAC_FLOAT32, 1, NULL, &posted));
        CHECK(sumac_wait(request, MINUTE, NULL) == SUMAC_ERR_JOB_FAILED);
        CHECK(sumac_last_error()->rank_count == 1 && sumac_last_error()->ranks[0] == 1);
        sumac_wait(posted, MINUTE, NULL); /* The job may have ended before the answer to the send. */
    }
    CHECK(sumac_wait(request, MINUTE, NULL) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(sumac_barrier(job) != SUMAC_OK);
    sumac_job_close(job); /* Its outcome may be the job's error. */
    CHECK(sumac_rank(job, &(uint32_t){0}) == SUMAC_ERR_INVALID_HANDLE);
    OK(sumac_free(client, values));
}

int main(void)
{
    rank = (uint32_t)atoi(getenv("RANK"));
    errors();
    versions();
    OK(sumac_connect(NULL, SUMAC_ABI_VERSION, &client));
    memory();
    sizes();
    sumac_job *job = join("conformance", SUMAC_MODE_STATIC, SUMAC_ORDER_DEFAULT);
    collectives(job);
    shared(job);
    asynchronous(job);
    misuse(job);
    saturation(job);
    OK(sumac_job_close(job));
    transfers();
    servers();
    threads();
    cancelled();

    /* What is open is closed with its client. */
    job = join("left open", SUMAC_MODE_DIRECT, SUMAC_ORDER_DEFAULT);
    sumac_barrier(job); /* Both have opened it; the other may be closed before this one has its answer. */
    OK(sumac_close(client));
    CHECK(sumac_barrier(job) == SUMAC_ERR_INVALID_HANDLE);
    CHECK(sumac_close(client) == SUMAC_ERR_INVALID_HANDLE);
    printf("rank %u: all is as the header says\n", rank);
    return 0;
}
