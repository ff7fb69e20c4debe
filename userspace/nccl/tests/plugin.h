/* A plugin of any version, the ranks' exchange of handles, and checks. */
#ifndef PLUGIN_H
#define PLUGIN_H

#include <stdbool.h>

#include "nccl_abi.h"

struct plugin {
    int version;
    int (*init)(void);
    void (*check_properties)(void);
    int (*listen)(void *handle, void **comm);
    int (*connect)(void *handle, void **comm);
    int (*accept)(void *listen_comm, void **comm, void **device_comm);
    int (*isend)(void *comm, void *data, size_t size, void *mhandle, void **request);
    int (*irecv)(void *comm, void *data, size_t size, void *mhandle, void **request);
    int (*flush_net)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
    int (*reg_mr_dma_buf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                          void **mhandle);
    int (*dereg_mr)(void *comm, void *mhandle);
    int (*close_send)(void *comm);
    int (*close_recv)(void *comm);
    int (*close_listen)(void *comm);
    int (*listen_coll)(void *handle, void **comm);
    int (*connect_coll)(void *handles[], int nranks, int rank, void *listen_comm, void **comm);
    int (*reduce_support)(int data_type, int red_op, int *supported);
    int (*reg_coll)(void *comm, void *data, size_t size, int type, void **mhandle);
    int (*dereg_coll)(void *comm, void *mhandle);
    int (*iallreduce)(void *comm, void *send, void *recv, size_t count, int type, int op, void *mhandle,
                      void **request);
    int (*iallgather)(void *comm, void *send, void *recv, size_t bytes_per_rank, size_t offset, size_t bytes,
                      void *mhandle, void **request);
    int (*ireducescatter)(void *comm, void *send, void *recv, size_t bytes_per_rank, size_t offset,
                          size_t bytes, int type, int op, void *mhandle, void **request);
    int (*flush_coll)(void *comm, void *data, int size, void *mhandle, void **request);
    int (*test_coll)(void *request, int *done, int *size);
    int (*close_coll)(void *comm);
    int (*close_listen_coll)(void *comm);
    int (*finalize)(void);
};

extern int rank, world;
extern struct plugin plugin;

void load(const char *library, int version);
void fail(const char *file, int line, const char *what, int result);
double now(void);
/* Waits a little, as a proxy thread does that has nothing to do. */
void idle(void);

/* Writes this rank's bytes under a name, and reads those of all ranks, as NCCL's bootstrap does. */
void exchange(const char *name, const void *own, size_t bytes, void *all);
/* Whether a file with this name is in the exchange's folder. */
bool appeared(const char *name);

/* Joins all ranks in a collective communicator. */
void *join(const char *name);
/* Makes a connection from rank `from` to rank `to`; NULL on other ranks. */
void *pair(const char *name, int from, int to);

void *allocate(size_t bytes);

#define CHECK(condition) \
    do { \
        if (!(condition)) \
            fail(__FILE__, __LINE__, #condition, -1); \
    } while (0)
#define OK(call) \
    do { \
        int result_ = (call); \
        if (result_ != SUCCESS) \
            fail(__FILE__, __LINE__, #call, result_); \
    } while (0)

#endif
