/* Loads a version of the plugin, and makes communicators as NCCL's proxy thread does: by calls that do not
 * block. */
#include "plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Seconds; longer than any step takes on a busy machine. */
#define TIMEOUT 60.0
/* Seconds that a call may take that does not block, on a busy machine. */
#define NON_BLOCKING 2.0

int rank, world;
struct plugin plugin;

void fail(const char *file, int line, const char *what, int result)
{
    fprintf(stderr, "%s:%d: rank %d, version %d: %s", file, line, rank, plugin.version, what);
    if (result >= 0)
        fprintf(stderr, " is %d", result);
    fprintf(stderr, "\n");
    fflush(NULL);
    _exit(1);
}

double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void idle(void)
{
    struct timespec pause = {0, 20000};
    nanosleep(&pause, NULL);
}

void *allocate(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    CHECK(memory != NULL);
    memset(memory, 0xcd, bytes + 1);
    return memory;
}

static void on_log(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    va_list arguments;
    (void)flags, (void)file, (void)line;
    fprintf(stderr, "[%d] level %d ", rank, level);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

#define VERSION 8
#include "version.inc"
#undef VERSION
#define VERSION 10
#include "version.inc"
#undef VERSION
#define VERSION 12
#include "version.inc"

void load(const char *library, int version)
{
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (loaded == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    plugin = version == 8 ? load_8(loaded) : version == 10 ? load_10(loaded) : load_12(loaded);
}

static void path_of(char *path, size_t size, const char *name, int of)
{
    const char *folder = getenv("EXCHANGE");
    CHECK(folder != NULL);
    snprintf(path, size, "%s/%s.%d", folder, name, of);
}

bool appeared(const char *name)
{
    char path[512];
    path_of(path, sizeof path, name, 0);
    return access(path, F_OK) == 0;
}

void exchange(const char *name, const void *own, size_t bytes, void *all)
{
    char path[512], unfinished[520];
    double deadline = now() + TIMEOUT;
    path_of(path, sizeof path, name, rank);
    snprintf(unfinished, sizeof unfinished, "%s.new", path);
    FILE *file = fopen(unfinished, "wb");
    CHECK(file != NULL && fwrite(own, 1, bytes, file) == bytes && fclose(file) == 0);
    CHECK(rename(unfinished, path) == 0);
    for (int other = 0; other < world; other++) {
        path_of(path, sizeof path, name, other);
        while ((file = fopen(path, "rb")) == NULL) {
            if (now() > deadline)
                fail(__FILE__, __LINE__, path, -1);
            idle();
        }
        CHECK(fread((char *)all + (size_t)other * bytes, 1, bytes, file) == bytes && fclose(file) == 0);
    }
}

void *join(const char *name)
{
    void *listener = NULL, *comm = NULL, *pointers[64];
    char own[HANDLE_BYTES], all[64 * HANDLE_BYTES];
    OK(plugin.listen_coll(own, &listener));
    exchange(name, own, sizeof own, all);
    for (int other = 0; other < world; other++)
        pointers[other] = all + other * HANDLE_BYTES;
    OK(plugin.connect_coll(pointers, world, rank, listener, &comm));
    CHECK(comm != NULL);
    OK(plugin.close_listen_coll(listener));
    return comm;
}

void *pair(const char *name, int from, int to)
{
    char own[HANDLE_BYTES] = {0}, all[64 * HANDLE_BYTES];
    void *listener = NULL, *comm = NULL;
    if (rank == to)
        OK(plugin.listen(own, &listener));
    exchange(name, own, sizeof own, all);
    double deadline = now() + TIMEOUT;
    while (comm == NULL && (rank == from || rank == to)) {
        double begin = now();
        if (rank == to)
            OK(plugin.accept(listener, &comm, NULL));
        else
            OK(plugin.connect(all + to * HANDLE_BYTES, &comm));
        CHECK(now() - begin < NON_BLOCKING && now() < deadline);
        idle();
    }
    if (listener != NULL)
        OK(plugin.close_listen(listener));
    return comm;
}
