/* Sums a vector over all workers of a job, in place.
 *
 *   cc allreduce.c $(pkg-config --cflags --libs sumac) -o allreduce
 *   ./allreduce 0 2     on the first host; ./allreduce 1 2 on the second
 */
#include <stdio.h>
#include <stdlib.h>

#include <sumac.h>

/* Ends the program with the text of the last error. */
static void check(sumac_status status, const char *action)
{
    if (status == SUMAC_OK)
        return;
    const sumac_error *error = sumac_last_error();
    fprintf(stderr, "%s: %s (%s)\n", action, error->message, sumac_strerror(status));
    if (error->hint != NULL)
        fprintf(stderr, "%s\n", error->hint);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: allreduce RANK WORLD\n");
        return 2;
    }
    uint32_t rank = (uint32_t)atoi(argv[1]);
    uint32_t world = (uint32_t)atoi(argv[2]);
    const size_t count = 1000000;

    sumac_client *client;
    sumac_job *job;
    void *memory;
    /* NULL: the socket of the variable SUMAC_SOCKET, or /run/sumac/sumac.sock. */
    check(sumac_connect(NULL, SUMAC_ABI_VERSION, &client), "connect");
    check(sumac_open(client, "c-example", rank, world, NULL, &job), "open the job");
    check(sumac_alloc(client, count * sizeof(float), &memory), "allocate");

    float *gradient = memory;
    for (size_t i = 0; i < count; i++)
        gradient[i] = (float)rank + 0.5f;
    check(sumac_allreduce(job, gradient, gradient, count, SUMAC_FLOAT32, SUMAC_SUM, NULL), "allreduce");
    printf("rank %u of %u: every element is %g\n", rank, world, (double)gradient[count - 1]);

    check(sumac_job_close(job), "close the job");
    check(sumac_free(client, memory), "free");
    check(sumac_close(client), "close");
    return 0;
}
