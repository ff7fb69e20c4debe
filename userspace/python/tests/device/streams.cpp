// Memory and streams of the tests' device.
#include "streams.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace played {

// Long enough that whoever does not wait finds the old values.
static constexpr auto DELAY = std::chrono::milliseconds(3);
static constexpr size_t PAGE = 4096;

struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    bool has_come = false;
};

struct Memory {
    uint8_t *reached;
    size_t length;
    Id stream;
};

struct Stream {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool is_busy = false;
};

static std::mutex memory_mutex;
static std::map<uintptr_t, Memory> memories;
static std::map<uintptr_t, size_t> locked;
static std::atomic<int64_t> unlocked_copies{0};
static std::atomic<bool> is_broken{false};

static std::mutex streams_mutex;
// Never destroyed: their threads go on until the process ends.
static std::vector<Stream *> &streams() {
    static auto *all = new std::vector<Stream *>;
    return *all;
}
static thread_local Id current = 0;

static size_t pages(size_t length) { return (length + PAGE) / PAGE * PAGE; }

void *allocate(size_t length) {
    int file = memfd_create("played-device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(pages(length))) != 0)
        throw std::runtime_error("played device: no memory");
    void *own = mmap(nullptr, pages(length), PROT_NONE, MAP_SHARED, file, 0);
    void *there = mmap(nullptr, pages(length), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (own == MAP_FAILED || there == MAP_FAILED)
        throw std::runtime_error("played device: no memory");
    std::lock_guard<std::mutex> guard(memory_mutex);
    memories[reinterpret_cast<uintptr_t>(own)] = {static_cast<uint8_t *>(there), pages(length), current};
    return own;
}

// After the work of the stream that it was allocated in, as CUDA's allocator: other streams must have ended
// theirs.
void release(void *address) {
    Memory memory;
    {
        std::lock_guard<std::mutex> guard(memory_mutex);
        auto found = memories.find(reinterpret_cast<uintptr_t>(address));
        if (found == memories.end())
            return;
        memory = found->second;
    }
    enqueue(memory.stream, [=] {
        std::lock_guard<std::mutex> guard(memory_mutex);
        memories.erase(reinterpret_cast<uintptr_t>(address));
        munmap(memory.reached, memory.length);
        munmap(address, memory.length);
    });
}

uint8_t *reached(void *address, size_t length) {
    auto at = reinterpret_cast<uintptr_t>(address);
    std::lock_guard<std::mutex> guard(memory_mutex);
    auto memory = memories.upper_bound(at);
    if (memory != memories.begin() && at - (--memory)->first < memory->second.length)
        return memory->second.reached + (at - memory->first);
    auto pinned = locked.upper_bound(at);
    bool is_locked = pinned != locked.begin() && at + length <= (--pinned)->first + pinned->second;
    // Those of the default stream are the tests' own.
    if (!is_locked && length >= PAGE && current != 0)
        unlocked_copies++;
    return static_cast<uint8_t *>(address);
}

static void run(Stream *stream) {
    for (;;) {
        std::unique_lock<std::mutex> guard(stream->mutex);
        stream->changed.wait(guard, [&] { return !stream->tasks.empty(); });
        auto task = std::move(stream->tasks.front());
        stream->tasks.pop_front();
        stream->is_busy = true;
        guard.unlock();
        task();
        task = nullptr;  // What it holds, too.
        guard.lock();
        stream->is_busy = false;
    }
}

Id new_stream() {
    auto *stream = new Stream;
    std::thread(run, stream).detach();
    std::lock_guard<std::mutex> guard(streams_mutex);
    streams().push_back(stream);
    return static_cast<Id>(streams().size() - 1);
}

static Stream *find(Id stream) {
    {
        std::lock_guard<std::mutex> guard(streams_mutex);
        if (stream < static_cast<Id>(streams().size()))
            return streams()[stream];
    }
    new_stream();  // The default one, at its first use.
    return find(stream);
}

Id current_stream() { return current; }

Id use_stream(Id stream) { return std::exchange(current, stream); }

void enqueue(Id stream, std::function<void()> task) {
    Stream *found = find(stream);
    {
        std::lock_guard<std::mutex> guard(found->mutex);
        found->tasks.push_back(std::move(task));
    }
    found->changed.notify_one();
}

EventRef record(Id stream) {
    auto event = std::make_shared<Event>();
    enqueue(stream, [event] {
        std::lock_guard<std::mutex> guard(event->mutex);
        event->has_come = true;
        event->changed.notify_all();
    });
    return event;
}

void wait_for(const Event &event) {
    auto &waited = const_cast<Event &>(event);
    std::unique_lock<std::mutex> guard(waited.mutex);
    waited.changed.wait(guard, [&] { return waited.has_come; });
}

bool has_come(const Event &event) {
    auto &asked = const_cast<Event &>(event);
    std::lock_guard<std::mutex> guard(asked.mutex);
    return asked.has_come;
}

bool is_idle(Id stream) {
    Stream *found = find(stream);
    std::lock_guard<std::mutex> guard(found->mutex);
    return found->tasks.empty() && !found->is_busy;
}

void wait_in(Id stream, EventRef event) {
    enqueue(stream, [event] { wait_for(*event); });
}

void copy(std::function<void()> task, bool is_blocking) {
    if (is_broken)
        throw std::runtime_error("played device: it has fallen off");
    enqueue(current, [task] {
        std::this_thread::sleep_for(DELAY);
        task();
    });
    if (is_blocking)
        wait_for(*record(current));
}

}  // namespace played

// For Python's ctypes.
extern "C" {
int64_t played_new_stream() { return played::new_stream(); }
int64_t played_use_stream(int64_t stream) { return played::use_stream(stream); }
void *played_record() { return new played::EventRef(played::record(played::current_stream())); }
void played_wait_in(int64_t stream, void *event) {
    played::wait_in(stream, *static_cast<played::EventRef *>(event));
}
int played_is_idle(int64_t stream) { return played::is_idle(stream); }

void played_lock(uintptr_t address, size_t length) {
    std::lock_guard<std::mutex> guard(played::memory_mutex);
    played::locked[address] = length;
}
void played_unlock(uintptr_t address) {
    std::lock_guard<std::mutex> guard(played::memory_mutex);
    played::locked.erase(address);
}
int64_t played_unlocked_copies() { return played::unlocked_copies; }
void played_break() { played::is_broken = true; }

// A kernel of the current stream that fills floats after some time.
void played_fill(void *address, size_t count, float value, int milliseconds) {
    auto *floats = reinterpret_cast<float *>(played::reached(address, count * sizeof(float)));
    played::enqueue(played::current_stream(), [=] {
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        for (size_t at = 0; at < count; at++)
            floats[at] = value;
    });
}
}
