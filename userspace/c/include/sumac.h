// libsumac: sums of gradients inside the network, for programs in C. A walk through is in docs/c.md.
//
// Every function but those that return a constant returns SUMAC_OK, or the reason of a failure, and then writes no
// result; sumac_last_error() has the text. Handles are opaque, and never reused: one that was closed is refused with
// SUMAC_ERR_INVALID_HANDLE. Strings are UTF-8. No function raises a signal or ends the process.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
// Made by cbindgen from userspace/c/src: do not edit.

#ifndef SUMAC_H
#define SUMAC_H

#include <stddef.h>
#include <stdint.h>

/// The version of this header.
#define SUMAC_VERSION "0.1.0"
#define SUMAC_VERSION_MAJOR 0
#define SUMAC_VERSION_MINOR 1
#define SUMAC_VERSION_PATCH 0

/// The major number of the ABI: that of the soname. Programs compiled for another one are refused.
#define SUMAC_ABI_MAJOR 0

/// The minor number of the ABI. It grows with additions; programs compiled for a later one are refused.
#define SUMAC_ABI_MINOR 5

/// The ABI that a program is compiled for; its argument to `sumac_connect`.
#define SUMAC_ABI_VERSION ((SUMAC_ABI_MAJOR << 16) | SUMAC_ABI_MINOR)

/// `scale` of `sumac_job_options` for block floating point: each packet has the largest scale that its values
/// allow.
#define SUMAC_SCALE_BLOCK -1.0

/// `timeout_ms` of `sumac_wait` for no timeout.
#define SUMAC_NO_TIMEOUT -1

/// `index` and `index_end` of `sumac_error` where the elements are not known.
#define SUMAC_NO_INDEX 18446744073709551615ull

/// The outcome of a call. The numbers are fixed; later versions add some.
typedef enum sumac_status {
    /// Success.
    SUMAC_OK = 0,
    /// An argument is NULL, out of range, or does not fit the others.
    SUMAC_ERR_INVALID_ARGUMENT = 1,
    /// A handle is NULL, closed, or of no object.
    SUMAC_ERR_INVALID_HANDLE = 2,
    /// The program was compiled for another ABI of libsumac.
    SUMAC_ERR_ABI_VERSION = 3,
    /// A tensor does not lie in memory of sumac_alloc.
    SUMAC_ERR_NOT_REGISTERED = 4,
    /// Memory could not be allocated.
    SUMAC_ERR_MEMORY = 5,
    /// The connection to the daemon failed, or is lost.
    SUMAC_ERR_CONNECTION = 6,
    /// The daemon sent a message that this version does not know.
    SUMAC_ERR_PROTOCOL = 7,
    /// A fault of the library.
    SUMAC_ERR_LIBRARY = 8,
    /// The daemon could not read a message.
    SUMAC_ERR_BAD_MESSAGE = 101,
    /// A message is too long.
    SUMAC_ERR_TOO_LARGE = 102,
    /// The daemon does not know a command.
    SUMAC_ERR_UNKNOWN_COMMAND = 103,
    /// A parameter has a value that is not allowed.
    SUMAC_ERR_BAD_FIELD = 104,
    /// The connection did not begin with a greeting.
    SUMAC_ERR_HELLO_FIRST = 105,
    /// The daemon has another version of the local API.
    SUMAC_ERR_VERSION = 106,
    /// This user may not do this.
    SUMAC_ERR_DENIED = 107,
    /// A limit of the connection, the user or the daemon is reached.
    SUMAC_ERR_LIMIT = 108,
    /// A file descriptor is missing.
    SUMAC_ERR_MISSING_FD = 109,
    /// A file descriptor was not expected.
    SUMAC_ERR_UNEXPECTED_FD = 110,
    /// The daemon refuses the memory.
    SUMAC_ERR_BAD_REGION = 111,
    /// The memory is not registered on this connection.
    SUMAC_ERR_UNKNOWN_REGION = 112,
    /// Requests use the memory.
    SUMAC_ERR_REGION_BUSY = 113,
    /// No such job.
    SUMAC_ERR_UNKNOWN_JOB = 114,
    /// Requests of the job have not been waited for.
    SUMAC_ERR_JOB_BUSY = 115,
    /// No such operation.
    SUMAC_ERR_UNKNOWN_OP = 116,
    /// A tensor lies outside its memory, or input and output overlap in part.
    SUMAC_ERR_OUT_OF_RANGE = 117,
    /// A tensor's address is not a multiple of its element's size.
    SUMAC_ERR_MISALIGNED = 118,
    /// Another request uses the tensor's memory.
    SUMAC_ERR_RANGE_BUSY = 119,
    /// Not supported, or not by this job.
    SUMAC_ERR_UNSUPPORTED = 120,
    /// The rank is taken: the job is open on this host already, or the rank on another.
    SUMAC_ERR_RANK_TAKEN = 121,
    /// Not all ranks joined in time; `ranks` names the missing.
    SUMAC_ERR_RANKS_MISSING = 122,
    /// The coordinator refuses the job.
    SUMAC_ERR_REFUSED = 123,
    /// The aggregator does not answer.
    SUMAC_ERR_UNREACHABLE = 124,
    /// Packets do not reach the aggregator or do not return.
    SUMAC_ERR_HANDSHAKE = 125,
    /// This host's data path could not be set up.
    SUMAC_ERR_DATAPATH = 126,
    /// The job has ended on all workers; `ranks` names the worker at fault.
    SUMAC_ERR_JOB_FAILED = 127,
    /// The workers' operations differ; `ranks` names those that differ.
    SUMAC_ERR_MISMATCH = 128,
    /// The operation was cancelled, and its job with it.
    SUMAC_ERR_CANCELLED = 129,
    /// A value is out of range, or not finite; `tensor` and `index` name it.
    SUMAC_ERR_SATURATED = 130,
    /// The time is over; the request continues.
    SUMAC_ERR_TIMEOUT = 131,
    /// The daemon is stopping.
    SUMAC_ERR_SHUTTING_DOWN = 132,
    /// A fault of the daemon.
    SUMAC_ERR_INTERNAL = 133,
    /// A failure with a code of a later version.
    SUMAC_ERR_UNKNOWN = 199,
} sumac_status;

/// The use of the aggregators' slots by a job.
typedef enum sumac_mode {
    /// The default: static.
    SUMAC_MODE_DEFAULT = 0,
    /// SwitchML: slots of the job's own.
    SUMAC_MODE_STATIC = 1,
    /// ATP: slots shared by all dynamic jobs, with parameter hosts.
    SUMAC_MODE_DYNAMIC = 2,
    /// MLT: without aggregator, from worker to worker; needed for `sumac_post_send` and `sumac_post_recv`.
    SUMAC_MODE_DIRECT = 3,
} sumac_mode;

/// The way of a direct job's values.
typedef enum sumac_topology {
    /// The default: by owners.
    SUMAC_TOPOLOGY_DEFAULT = 0,
    /// Each block of a tensor has a worker that reduces and distributes it.
    SUMAC_TOPOLOGY_OWNERS = 1,
    /// Around the ring of workers.
    SUMAC_TOPOLOGY_RING = 2,
} sumac_topology;

/// The format of floats in packets.
typedef enum sumac_wire {
    /// The daemon's default.
    SUMAC_WIRE_DEFAULT = 0,
    /// 32-bit integers.
    SUMAC_WIRE_INT32 = 1,
    /// 16-bit integers: half the bytes, less precision. In direct jobs of float32 alone.
    SUMAC_WIRE_INT16 = 2,
    /// 16 bits for float16 and bfloat16 where few workers sum them, else 32.
    SUMAC_WIRE_AUTO = 3,
} sumac_wire;

/// The policy for NaN and infinity.
typedef enum sumac_not_finite {
    /// The default: an error.
    SUMAC_NOT_FINITE_DEFAULT = 0,
    /// The operation fails with `SUMAC_ERR_SATURATED`.
    SUMAC_NOT_FINITE_ERROR = 1,
    /// All elements of the packet are NaN.
    SUMAC_NOT_FINITE_CARRY = 2,
} sumac_not_finite;

/// The rule by which the workers' operations are matched.
typedef enum sumac_order {
    /// The default: by submission.
    SUMAC_ORDER_DEFAULT = 0,
    /// The n-th operation of one worker belongs to the n-th of each other.
    SUMAC_ORDER_SUBMISSION = 1,
    /// Operations of the same name belong together; each needs one.
    SUMAC_ORDER_NAME = 2,
} sumac_order;

/// A choice with a default.
typedef enum sumac_choice {
    /// The default.
    SUMAC_DEFAULT = 0,
    /// Yes.
    SUMAC_YES = 1,
    /// No.
    SUMAC_NO = 2,
} sumac_choice;

/// The way in which an operation's packets are told apart by importance, so that routers drop unimportant
/// ones first.
typedef enum sumac_importance {
    /// Not at all.
    SUMAC_IMPORTANCE_NONE = 0,
    /// By the packets' values.
    SUMAC_IMPORTANCE_MAGNITUDE = 1,
    /// The whole tensor is important.
    SUMAC_IMPORTANCE_HIGH = 2,
    /// The whole tensor is unimportant.
    SUMAC_IMPORTANCE_LOW = 3,
} sumac_importance;

/// The type of a tensor's elements, in the host's byte order.
typedef enum sumac_dtype {
    /// IEEE 754 single precision, `float`.
    SUMAC_FLOAT32 = 1,
    /// IEEE 754 half precision.
    SUMAC_FLOAT16 = 2,
    /// The upper half of single precision.
    SUMAC_BFLOAT16 = 3,
    /// `int32_t`.
    SUMAC_INT32 = 4,
} sumac_dtype;

/// The reduction of a collective operation.
typedef enum sumac_reduction {
    /// The sum over all workers.
    SUMAC_SUM = 1,
    /// The sum divided by the number of workers.
    SUMAC_MEAN = 2,
    /// The least value.
    SUMAC_MIN = 3,
    /// The greatest value.
    SUMAC_MAX = 4,
} sumac_reduction;

/// The values of a received tensor's elements that are missing.
typedef enum sumac_missing {
    /// Zero, for gradients.
    SUMAC_MISSING_ZERO = 0,
    /// The values that the memory had before, for parameters.
    SUMAC_MISSING_KEEP = 1,
} sumac_missing;

/// A connection to the host's daemon.
typedef struct sumac_client sumac_client;

/// A job with this process as a worker.
typedef struct sumac_job sumac_job;

/// A submitted operation.
typedef struct sumac_request sumac_request;

/// An error, as `sumac_last_error` returns it. Later versions add members at the end.
typedef struct sumac_error {
    /// The status that the call returned.
    enum sumac_status code;
    /// The action, its object, and the reason.
    const char *message;
    /// The next step, or NULL.
    const char *hint;
    /// The ranks that are missing or at fault: `rank_count` numbers, or NULL.
    const uint32_t *ranks;
    /// The number of ranks.
    size_t rank_count;
    /// The tensor at fault, by its operation's name or `#` and number; or NULL.
    const char *tensor;
    /// The first element at fault, or `SUMAC_NO_INDEX`.
    uint64_t index;
    /// One past the last element that may be at fault, or `SUMAC_NO_INDEX`.
    uint64_t index_end;
} sumac_error;

/// The options of a job. `sumac_job_options_init` sets all to their defaults, which are zeros but for `size`.
/// Later versions add members at the end; `size` tells the library which of them the program knows.
typedef struct sumac_job_options {
    /// The size of this structure in bytes, as the program was compiled.
    size_t size;
    /// The join token or job secret; NULL for the daemon's.
    const char *secret;
    /// The aggregator's control plane, by its name in the daemon's configuration; NULL for its default one.
    const char *aggregator;
    /// The time to wait for the other workers, in milliseconds; 0 for the daemon's.
    uint64_t timeout_ms;
    /// The use of the aggregators' slots.
    enum sumac_mode mode;
    /// The way of a direct job's values.
    enum sumac_topology topology;
    /// The format of floats in packets.
    enum sumac_wire wire;
    /// The policy for NaN and infinity.
    enum sumac_not_finite not_finite;
    /// The rule by which operations are matched.
    enum sumac_order order;
    /// Whether a static or dynamic job uses a congestion window.
    enum sumac_choice congestion_control;
    /// The factor for floats; 0 for the daemon's, or `SUMAC_SCALE_BLOCK`.
    float scale;
    /// 32-bit words in a packet; 0 for the path's maximum.
    uint32_t elements;
    /// Slots of each lane of a static job; 0 for the measured number.
    uint32_t slots;
    /// The maximum of shared slots of a dynamic job; 0 for all.
    uint32_t dynamic_slots;
    /// Packets in flight of a dynamic or direct job; 0 for the default.
    uint32_t window;
    /// Shards for a tensor; 0 for as many as there are.
    uint32_t shards;
    /// Workers that own blocks in a direct job; 0 for all.
    uint32_t owners;
    /// Parameter hosts of a dynamic job; 0 for as many as there are.
    uint32_t parameter_hosts;
    /// The job's ranks on this host, at this daemon; 0 for one.
    uint32_t local_world;
    /// Zero. Programs of ABI 0.3 have padding here.
    uint32_t reserved;
    /// Ranks of a direct job, from rank 0 on, that are parameter servers: they own all blocks, and contribute
    /// nothing; 0 for none.
    uint32_t servers;
} sumac_job_options;

/// The options of an operation. `sumac_op_options_init` sets all to their defaults, which are zeros but for
/// `size`.
typedef struct sumac_op_options {
    /// The size of this structure in bytes, as the program was compiled.
    size_t size;
    /// The operation's name, the same on all workers, or NULL; required with `SUMAC_ORDER_NAME`. Not for
    /// `sumac_post_send`.
    const char *name;
    /// 0 (lowest) to 7; from 4 on a collective operation overtakes those below.
    uint32_t priority;
    /// The way in which packets are told apart by importance.
    enum sumac_importance importance;
    /// The fraction of its elements that each worker may be left out with; 0 for exact results. Not for
    /// `sumac_post_send`.
    float loss_bound;
} sumac_op_options;

/// The options of `sumac_post_recv`. `sumac_recv_options_init` sets all to their defaults, which are zeros
/// but for `size`.
typedef struct sumac_recv_options {
    /// The size of this structure in bytes, as the program was compiled.
    size_t size;
    /// The fraction of the tensor that may be missing, below 1; 0 for all of it.
    float loss_bound;
    /// The values of elements that are missing.
    enum sumac_missing missing;
} sumac_recv_options;

/// The outcome of an operation that has ended. The program sets `size`; the library writes the members within
/// it.
typedef struct sumac_completion {
    /// The size of this structure in bytes, as the program was compiled.
    size_t size;
    /// From submission to the arrival of the last element, in nanoseconds, by the daemon's clock.
    uint64_t duration_ns;
    /// The elements that are missing, added up over all workers; 0 without a loss bound.
    uint64_t missing;
    /// The fraction of all workers' elements that is missing.
    double missing_fraction;
} sumac_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Returns the version of the library that is loaded, "MAJOR.MINOR.PATCH", as a static string.
/// `SUMAC_VERSION` is that of the header.
///
/// Thread safety: any thread, at any time.
const char *sumac_version(void);

/// Returns the ABI of the library that is loaded: its major number times 65536, plus its minor number.
///
/// Thread safety: any thread, at any time.
uint32_t sumac_abi_version(void);

/// Returns the error of the last call of this thread that failed, or NULL if none has. It is valid until
/// the next call of this thread that fails, or its end.
///
/// Thread safety: any thread; each has its own.
const struct sumac_error *sumac_last_error(void);

/// Returns the meaning of a status in a few words, as a static string; also of a number that is none.
/// `sumac_last_error` has the reason of a particular failure.
///
/// Thread safety: any thread, at any time.
const char *sumac_strerror(enum sumac_status status);

/// Connects to the daemon of this host. `socket` is the path of its socket; with NULL it is the environment
/// variable SUMAC_SOCKET, or else "/run/sumac/sumac.sock". `abi_version` is `SUMAC_ABI_VERSION`: a library
/// with another ABI refuses the program with `SUMAC_ERR_ABI_VERSION`. The client belongs to this process: a
/// child made by fork connects anew.
///
/// Thread safety: any thread, at any time.
enum sumac_status sumac_connect(const char *socket, uint32_t abi_version, struct sumac_client **client);

/// Closes a client, with its jobs, requests and memory: their handles and addresses are invalid after it. A
/// job that was opened and not closed fails on the other workers.
///
/// Thread safety: any thread; no other thread may use the client, or what belongs to it, at the same time.
enum sumac_status sumac_close(struct sumac_client *client);

/// Allocates `size` zeroed bytes that the daemon maps too, aligned to a page. Tensors lie in such memory; one
/// block can have many, at offsets that are multiples of their elements' size (64 is best). Each block is a
/// mapping and a registration, so few large ones are cheaper.
///
/// Thread safety: any thread, at any time.
enum sumac_status sumac_alloc(struct sumac_client *client, size_t size, void **memory);

/// Returns `size` zeroed bytes for results, which all ranks of the job on this host read and none can write:
/// a store to them raises SIGSEGV. The daemon writes a result once for all of them. They are `recv` of
/// `sumac_allreduce` and `sumac_allgather`, and never `send` of the same operation. All ranks of the host ask
/// for the same sizes in the same order, and give the same place as `recv` of an operation; the next one
/// overwrites the result once all have submitted it. `sumac_free` frees them.
///
/// Thread safety: any thread, at any time; several threads agree on the order.
enum sumac_status sumac_alloc_shared(struct sumac_job *job, size_t size, void **memory);

/// Frees memory of `sumac_alloc` or `sumac_alloc_shared`; NULL is allowed. Fails with
/// `SUMAC_ERR_REGION_BUSY` while requests use it.
///
/// Thread safety: any thread; no other thread may use the memory at the same time.
enum sumac_status sumac_free(struct sumac_client *client, void *memory);

/// Sets the options of a job to their defaults. `size` is `sizeof(sumac_job_options)`.
///
/// Thread safety: any thread; the structure is the caller's.
enum sumac_status sumac_job_options_init(struct sumac_job_options *options, size_t size);

/// Joins the job `name` as the worker `rank` of `world`, and returns when all of them have joined. `options`
/// may be NULL. `SUMAC_ERR_RANKS_MISSING` has the ranks that did not join in time. A job in mode direct has
/// no aggregator but its coordinator.
///
/// Thread safety: any thread, at any time; other calls on the client go on meanwhile.
enum sumac_status sumac_open(struct sumac_client *client,
                             const char *name,
                             uint32_t rank,
                             uint32_t world,
                             const struct sumac_job_options *options,
                             struct sumac_job **job);

/// Attaches to a job that another connection of this host has opened, to submit operations too. `secret` may
/// be NULL for the user who opened it.
///
/// Thread safety: any thread, at any time.
enum sumac_status sumac_attach(struct sumac_client *client,
                               const char *name,
                               const char *secret,
                               struct sumac_job **job);

/// Attaches to a job as its rank `rank`, as `sumac_attach`: where this host has several of its ranks.
///
/// Thread safety: any thread, at any time.
enum sumac_status sumac_attach_rank(struct sumac_client *client,
                                    const char *name,
                                    uint32_t rank,
                                    const char *secret,
                                    struct sumac_job **job);

/// Closes a job after its last operation. Fails with `SUMAC_ERR_JOB_BUSY`, and the job stays open, while
/// requests have not been waited for. After any other outcome the handle is invalid; if the job has failed,
/// its error is returned.
///
/// Thread safety: any thread; no other thread may use the job at the same time.
enum sumac_status sumac_job_close(struct sumac_job *job);

/// Returns this worker's rank in the job, from 0 on.
///
/// Thread safety: any thread, at any time.
enum sumac_status sumac_rank(const struct sumac_job *job, uint32_t *rank);

/// Returns the number of the job's workers.
///
/// Thread safety: any thread, at any time.
enum sumac_status sumac_world(const struct sumac_job *job, uint32_t *world);

/// Returns an eventfd that counts the job's ended operations, for the program's event loop: once it is
/// readable, `sumac_test` finds the request. It belongs to the job; do not close it.
///
/// Thread safety: any thread, at any time.
enum sumac_status sumac_event_fd(const struct sumac_job *job, int32_t *fd);

/// Sets the options of an operation to their defaults. `size` is `sizeof(sumac_op_options)`.
///
/// Thread safety: any thread; the structure is the caller's.
enum sumac_status sumac_op_options_init(struct sumac_op_options *options, size_t size);

/// Reduces `count` elements at `send` over all workers into `recv`, on all of them; in place if `recv` is
/// `send`. All workers submit the same operations, in the same order unless the job's order is by name. Both
/// lie in memory of `sumac_alloc`, and overlap not at all or entirely. `options` may be NULL. Returns when
/// the result is there.
///
/// Thread safety: any thread, at any time; operations of several threads on one job are matched in the order
/// in which the daemon receives them, so either one thread submits or operations have names
/// (`SUMAC_ORDER_NAME`).
enum sumac_status sumac_allreduce(struct sumac_job *job,
                                  const void *send,
                                  void *recv,
                                  size_t count,
                                  enum sumac_dtype dtype,
                                  enum sumac_reduction reduction,
                                  const struct sumac_op_options *options);

/// As `sumac_allreduce`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_allreduce`.
enum sumac_status sumac_allreduce_async(struct sumac_job *job,
                                        const void *send,
                                        void *recv,
                                        size_t count,
                                        enum sumac_dtype dtype,
                                        enum sumac_reduction reduction,
                                        const struct sumac_op_options *options,
                                        struct sumac_request **request);

/// Copies `count` elements at `buffer` of the worker `root` to `buffer` of all workers, bit for bit.
/// `options` may be NULL. Returns when the result is there.
///
/// Thread safety: as `sumac_allreduce`.
enum sumac_status sumac_broadcast(struct sumac_job *job,
                                  void *buffer,
                                  size_t count,
                                  enum sumac_dtype dtype,
                                  uint32_t root,
                                  const struct sumac_op_options *options);

/// As `sumac_broadcast`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_broadcast`.
enum sumac_status sumac_broadcast_async(struct sumac_job *job,
                                        void *buffer,
                                        size_t count,
                                        enum sumac_dtype dtype,
                                        uint32_t root,
                                        const struct sumac_op_options *options,
                                        struct sumac_request **request);

/// Reduces `count` elements at `send` over all workers into `recv` of the worker `root`; in place if `recv`
/// is `send`. On other workers `recv` is ignored, and may be NULL. `options` may be NULL. Returns when the
/// result is there.
///
/// Thread safety: as `sumac_allreduce`.
enum sumac_status sumac_reduce(struct sumac_job *job,
                               const void *send,
                               void *recv,
                               size_t count,
                               enum sumac_dtype dtype,
                               enum sumac_reduction reduction,
                               uint32_t root,
                               const struct sumac_op_options *options);

/// As `sumac_reduce`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_reduce`.
enum sumac_status sumac_reduce_async(struct sumac_job *job,
                                     const void *send,
                                     void *recv,
                                     size_t count,
                                     enum sumac_dtype dtype,
                                     enum sumac_reduction reduction,
                                     uint32_t root,
                                     const struct sumac_op_options *options,
                                     struct sumac_request **request);

/// Reduces a tensor of a block of `recv_count` elements for each worker, at `send`, over all workers; each
/// receives its own block of the result, at `recv`. In place if `recv` is `send` plus the worker's rank times
/// the block: the other blocks are unchanged. In a job with servers the blocks are theirs, and `recv` of
/// other ranks is not used. `options` may be NULL. Returns when the result is there.
///
/// Thread safety: as `sumac_allreduce`.
enum sumac_status sumac_reduce_scatter(struct sumac_job *job,
                                       const void *send,
                                       void *recv,
                                       size_t recv_count,
                                       enum sumac_dtype dtype,
                                       enum sumac_reduction reduction,
                                       const struct sumac_op_options *options);

/// As `sumac_reduce_scatter`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_reduce_scatter`.
enum sumac_status sumac_reduce_scatter_async(struct sumac_job *job,
                                             const void *send,
                                             void *recv,
                                             size_t recv_count,
                                             enum sumac_dtype dtype,
                                             enum sumac_reduction reduction,
                                             const struct sumac_op_options *options,
                                             struct sumac_request **request);

/// Collects the blocks of all workers, `send_count` elements each at `send`, at `recv` of all of them, in the
/// order of ranks, bit for bit. In place if `send` is `recv` plus the worker's rank times the block. In a job
/// with servers the blocks are theirs, other ranks receive them, and their `send` is not used. `options` may
/// be NULL. Returns when the result is there.
///
/// Thread safety: as `sumac_allreduce`.
enum sumac_status sumac_allgather(struct sumac_job *job,
                                  const void *send,
                                  void *recv,
                                  size_t send_count,
                                  enum sumac_dtype dtype,
                                  const struct sumac_op_options *options);

/// As `sumac_allgather`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_allgather`.
enum sumac_status sumac_allgather_async(struct sumac_job *job,
                                        const void *send,
                                        void *recv,
                                        size_t send_count,
                                        enum sumac_dtype dtype,
                                        const struct sumac_op_options *options,
                                        struct sumac_request **request);

/// Returns when all workers have called it. It is an operation like others: those that a worker submitted
/// before may still be outstanding after it.
///
/// Thread safety: as `sumac_allreduce`.
enum sumac_status sumac_barrier(struct sumac_job *job);

/// Sets the options of `sumac_post_recv` to their defaults. `size` is `sizeof(sumac_recv_options)`.
///
/// Thread safety: any thread; the structure is the caller's.
enum sumac_status sumac_recv_options_init(struct sumac_recv_options *options, size_t size);

/// Sends `count` elements at `buffer` to the worker `destination` of a direct job, which takes them by
/// `sumac_post_recv`. The n-th of one worker to another belongs to the n-th `sumac_post_recv` there.
/// `options` may be NULL.
///
/// Thread safety: any thread, at any time; transfers of several threads to one worker are matched in the
/// order in which the daemon receives them.
enum sumac_status sumac_post_send(struct sumac_job *job,
                                  const void *buffer,
                                  size_t count,
                                  enum sumac_dtype dtype,
                                  uint32_t destination,
                                  const struct sumac_op_options *options,
                                  struct sumac_request **request);

/// Receives `count` elements into `buffer` that the worker `source` of a direct job sends by
/// `sumac_post_send`. With a loss bound some may be missing; `sumac_completion` has how many. `options` may
/// be NULL.
///
/// Thread safety: as `sumac_post_send`.
enum sumac_status sumac_post_recv(struct sumac_job *job,
                                  void *buffer,
                                  size_t count,
                                  enum sumac_dtype dtype,
                                  uint32_t source,
                                  const struct sumac_recv_options *options,
                                  struct sumac_request **request);

/// Waits for a request, for at most `timeout_ms` milliseconds or, with `SUMAC_NO_TIMEOUT`, until its end.
/// With `SUMAC_ERR_TIMEOUT` it continues; after any other outcome its handle is invalid. Until then the
/// program may not write its input or access its result. `completion` may be NULL.
///
/// Thread safety: any thread; one thread at a time for a request.
enum sumac_status sumac_wait(struct sumac_request *request,
                             int64_t timeout_ms,
                             struct sumac_completion *completion);

/// Sets `*done` to 1 if a request has ended, else to 0, without waiting. If it has ended, and after an error,
/// its handle is invalid. `completion` may be NULL.
///
/// Thread safety: any thread; one thread at a time for a request.
enum sumac_status sumac_test(struct sumac_request *request,
                             int32_t *done,
                             struct sumac_completion *completion);

/// Cancels a request. Its job ends on all workers, whose errors name this rank. The request must be waited
/// for in any case.
///
/// Thread safety: any thread; one thread at a time for a request.
enum sumac_status sumac_cancel(struct sumac_request *request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SUMAC_H */
