// Memory and streams of the tests' device. Its memory cannot be read or written by the host, and what is put
// into a stream happens later, in a thread: a missing wait, or a copy that was forgotten, is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace played {

using Id = int64_t;

// Memory at addresses that the host may not touch.
void *allocate(size_t length);
void release(void *address);

// Where the device itself finds an address of its own or of the host. Host memory of at least a page that was
// not locked is counted, but in the default stream.
uint8_t *reached(void *address, size_t length);

// A point in a stream.
struct Event;
using EventRef = std::shared_ptr<Event>;

Id new_stream();
Id current_stream();
Id use_stream(Id stream);

// Puts a task into a stream.
void enqueue(Id stream, std::function<void()> task);
EventRef record(Id stream);
bool is_idle(Id stream);
void wait_in(Id stream, EventRef event);
bool has_come(const Event &event);
void wait_for(const Event &event);

// Runs a copy in the current stream, later. Throws once the device is broken.
void copy(std::function<void()> task, bool is_blocking);

}  // namespace played
