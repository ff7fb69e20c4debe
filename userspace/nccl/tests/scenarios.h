/* Requests of both networks, and the scenarios of the collective one. */
#ifndef SCENARIOS_H
#define SCENARIOS_H

#include "plugin.h"

#define IN_FLIGHT 12
/* Seconds after which a request has ended, or an error is reported. */
#define TIMEOUT 60.0

/* A request of an allreduce, with its memory. */
struct reduction {
    void *send, *recv, *request;
    int type, op, salt;
    size_t count;
};

/* Tests a request until its end; returns the result of the last test. */
int test_until(int (*test)(void *, int *, int *), void *request, int *size);
/* Waits for a collective request, which may be NULL. */
void wait_coll(void *request);
/* Begins an allreduce. The salt chooses type, reduction and values. */
void begin(void *comm, void *mhandle, struct reduction *reduction, int salt, size_t count);
/* Checks the result of an allreduce, and frees its memory. */
void end(struct reduction *reduction);
/* A dozen requests on each of some communicators at once, tested in the reverse order. */
void reduce_on(void *const *comms, int count, size_t elements);

void sums(void);
void windows(void);
void values(void);
void uneven(void);
void aggregator_dies(bool goes_on);

#endif
