/* The interface of NCCL's network plugins in versions 8, 10 and 12, as far as the tests call it. Written from
 * its description, as userspace/nccl/src/abi is. */
#ifndef NCCL_ABI_H
#define NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
    SUCCESS = 0,
    SYSTEM_ERROR = 2,
    INTERNAL_ERROR = 3,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6
};
enum { INT8 = 0, INT32 = 2, INT64 = 4, FLOAT16 = 6, FLOAT32 = 7, FLOAT64 = 8, BFLOAT16 = 9 };
enum { SUM = 0, PROD = 1, MAX = 2, MIN = 3, AVG = 4 };
enum { PTR_HOST = 1, PTR_CUDA = 2 };
#define HANDLE_BYTES 128

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, reg_is_global, speed, port;
    float latency;
    int max_comms, max_recvs, net_device_type, net_device_version;
} properties_8;

typedef struct {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, reg_is_global, force_flush, speed, port;
    float latency;
    int max_comms, max_recvs, net_device_type, net_device_version;
    int ndevs, devs[4];
    size_t max_p2p_bytes, max_coll_bytes;
} properties_10;

typedef struct {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, reg_is_global, force_flush, speed, port;
    float latency;
    int max_comms, max_recvs, net_device_type, net_device_version;
    int ndevs, devs[8];
    size_t max_p2p_bytes, max_coll_bytes;
    int max_multi_request_size;
    int16_t rail_id, plane_id;
} properties_12;

typedef struct {
    void *mhandle, *address;
    uint32_t size;
} sge_8;

typedef struct {
    void *mhandle, *address;
    size_t size;
} sge_10;
typedef sge_10 sge_12;

/* The members that are the same in all versions. */
#define ACCEPT int (*accept)(void *listen_comm, void **recv_comm, void **device_comm)
#define MEMORY \
    int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle); \
    int (*reg_mr_dma_buf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, \
                          void **mhandle); \
    int (*dereg_mr)(void *comm, void *mhandle)
#define END_OF_NET \
    int (*iflush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request); \
    int (*test)(void *request, int *done, int *sizes); \
    int (*close_send)(void *comm); \
    int (*close_recv)(void *comm); \
    int (*close_listen)(void *comm); \
    int (*get_device_mr)(void *comm, void *mhandle, void **device); \
    int (*irecv_consumed)(void *comm, int n, void *request)
#define COLL_CONNECT \
    int (*connect)(void *handles[], int nranks, int rank, void *listen_comm, void **coll_comm); \
    int (*reduce_support)(int data_type, int red_op, int *supported)
#define COLL_OPERATIONS(count_type, sge_type) \
    int (*iallreduce)(void *comm, void *send, void *recv, count_type count, int data_type, int red_op, \
                      void *send_mhandle, void *recv_mhandle, void **request); \
    int (*iallgather)(void *comm, void *send, int parts, sge_type *recv_parts, size_t bytes_per_rank, \
                      size_t window_offset, size_t window_bytes, void *send_mhandle, void **request); \
    int (*ireducescatter)(void *comm, int parts, sge_type *send_parts, void *recv, size_t bytes_per_rank, \
                          size_t window_offset, size_t window_bytes, int data_type, int red_op, \
                          void *recv_mhandle, void **request)
#define END_OF_COLL \
    int (*iflush)(void *comm, void *data, int size, void *mhandle, void **request); \
    int (*test)(void *request, int *done, int *size); \
    int (*close_coll)(void *comm); \
    int (*close_listen)(void *comm)

typedef struct {
    const char *name;
    int (*init)(logger log);
    int (*devices)(int *ndev);
    int (*get_properties)(int dev, properties_8 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    int (*connect)(int dev, void *handle, void **send_comm, void **device_comm);
    ACCEPT;
    MEMORY;
    int (*isend)(void *comm, void *data, int size, int tag, void *mhandle, void **request);
    int (*irecv)(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
    END_OF_NET;
} net_8;

typedef struct {
    const char *name;
    int (*init)(logger log, void *profiler);
    int (*devices)(int *ndev);
    int (*get_properties)(int dev, properties_10 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    int (*connect)(int dev, void *config, void *handle, void **send_comm, void **device_comm);
    ACCEPT;
    MEMORY;
    int (*isend)(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
    int (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                 void **request);
    END_OF_NET;
    int (*make_v_device)(int *d, void *props);
} net_10;

typedef struct {
    const char *name;
    int (*init)(void **context, uint64_t comm_id, void *config, logger log, void *profiler);
    int (*devices)(int *ndev);
    int (*get_properties)(int dev, properties_12 *props);
    int (*listen)(void *context, int dev, void *handle, void **listen_comm);
    int (*connect)(void *context, int dev, void *handle, void **send_comm, void **device_comm);
    ACCEPT;
    MEMORY;
    int (*isend)(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
    int (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                 void **request);
    END_OF_NET;
    int (*make_v_device)(int *d, void *props);
    int (*finalize)(void *context);
    int (*set_net_attr)(void *context, void *attributes);
} net_12;

typedef struct {
    const char *name;
    int (*init)(logger log);
    int (*devices)(int *ndev);
    int (*get_properties)(int dev, properties_8 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    COLL_CONNECT;
    MEMORY;
    COLL_OPERATIONS(int, sge_8);
    END_OF_COLL;
} coll_8;

typedef struct {
    const char *name;
    int (*init)(logger log);
    int (*devices)(int *ndev);
    int (*get_properties)(int dev, properties_10 *props);
    int (*listen)(int dev, void *handle, void **listen_comm);
    COLL_CONNECT;
    MEMORY;
    COLL_OPERATIONS(size_t, sge_10);
    END_OF_COLL;
    int (*make_v_device)(int *d, void *props);
} coll_10;

typedef struct {
    const char *name;
    int (*init)(void **context, uint64_t comm_id, logger log);
    int (*devices)(int *ndev);
    int (*get_properties)(int dev, properties_12 *props);
    int (*listen)(void *context, int dev, void *handle, void **listen_comm);
    COLL_CONNECT;
    MEMORY;
    COLL_OPERATIONS(size_t, sge_12);
    END_OF_COLL;
    int (*make_v_device)(int *d, void *props);
    int (*finalize)(void *context);
} coll_12;

/* The same numbers are in userspace/nccl/src/abi/tests.rs. */
_Static_assert(sizeof(properties_8) == 64 && offsetof(properties_8, net_device_version) == 56,
               "properties 8");
_Static_assert(sizeof(properties_10) == 104 && offsetof(properties_10, max_coll_bytes) == 96,
               "properties 10");
_Static_assert(sizeof(properties_12) == 128 && offsetof(properties_12, plane_id) == 126, "properties 12");
_Static_assert(sizeof(sge_8) == 24 && sizeof(sge_10) == 24, "parts");
_Static_assert(sizeof(net_8) == 19 * 8 && sizeof(net_10) == 20 * 8 && sizeof(net_12) == 22 * 8, "net");
_Static_assert(sizeof(coll_8) == 17 * 8 && sizeof(coll_10) == 18 * 8 && sizeof(coll_12) == 19 * 8, "coll");

#endif
