/* A small program in the manner of MPI: each worker integrates a part of 4 / (1 + x^2), the sum of the parts is pi, and a
 * token goes around the ring of workers. It needs no aggregator: the job is in mode direct.
 *
 *   cc -std=c11 pi.c $(pkg-config --cflags --libs sumac) -o pi
 *   RANK=0 WORLD_SIZE=2 ./pi     on the first host; RANK=1 on the second
 */
#include <stdio.h>
#include <stdlib.h>

#include <sumac.h>

static void check(sumac_status status, const char *action)
{
    if (status == SUMAC_OK)
        return;
    fprintf(stderr, "%s: %s\n", action, sumac_last_error()->message);
    exit(1);
}

static uint32_t number(const char *variable)
{
    const char *text = getenv(variable);
    if (text == NULL) {
        fprintf(stderr, "%s is not set\n", variable);
        exit(2);
    }
    return (uint32_t)atoi(text);
}

/* This worker's part of the integral from 0 to 1: every world-th of the steps. */
static double part(uint32_t rank, uint32_t world)
{
    const uint32_t steps = 1000000;
    double sum = 0;
    for (uint32_t step = rank; step < steps; step += world) {
        double x = (step + 0.5) / steps;
        sum += 4 / (1 + x * x);
    }
    return sum / steps;
}

int main(void)
{
    sumac_client *client;
    check(sumac_connect(NULL, SUMAC_ABI_VERSION, &client), "connect");

    sumac_job_options options;
    check(sumac_job_options_init(&options, sizeof options), "options");
    options.mode = SUMAC_MODE_DIRECT;
    options.timeout_ms = 60000;
    sumac_job *job;
    check(sumac_open(client, "pi", number("RANK"), number("WORLD_SIZE"), &options, &job), "open the job");
    uint32_t rank, world;
    check(sumac_rank(job, &rank), "rank");
    check(sumac_world(job, &world), "world");

    /* One block for all buffers: a cache line for each. */
    void *memory;
    check(sumac_alloc(client, 4 * 64, &memory), "allocate");
    float *mine = memory, *pi = mine + 16, *largest = mine + 32;
    int32_t *token = (int32_t *)memory + 48;

    *mine = (float)part(rank, world);
    check(sumac_reduce(job, mine, pi, 1, SUMAC_FLOAT32, SUMAC_SUM, 0, NULL), "reduce");
    check(sumac_allreduce(job, mine, largest, 1, SUMAC_FLOAT32, SUMAC_MAX, NULL), "allreduce");
    if (rank == 0)
        printf("pi is %.4f, the largest of %u parts %.4f\n", (double)*pi, world, (double)*largest);
    check(sumac_barrier(job), "barrier");

    /* Each worker adds one to the token, and rank 0 sees it again. */
    uint32_t next = (rank + 1) % world, previous = (rank + world - 1) % world;
    sumac_request *request;
    *token = 1;
    if (rank != 0) {
        check(sumac_post_recv(job, token, 1, SUMAC_INT32, previous, NULL, &request), "receive");
        check(sumac_wait(request, SUMAC_NO_TIMEOUT, NULL), "receive");
        ++*token;
    }
    if (world > 1) {
        check(sumac_post_send(job, token, 1, SUMAC_INT32, next, NULL, &request), "send");
        check(sumac_wait(request, SUMAC_NO_TIMEOUT, NULL), "send");
    }
    if (rank == 0) {
        if (world > 1) {
            check(sumac_post_recv(job, token, 1, SUMAC_INT32, previous, NULL, &request), "receive");
            check(sumac_wait(request, SUMAC_NO_TIMEOUT, NULL), "receive");
        }
        printf("the token was at %d workers\n", *token);
    }
    check(sumac_job_close(job), "close the job");
    check(sumac_close(client), "close");
    return 0;
}
