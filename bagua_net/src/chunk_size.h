// How much a stream takes at once, and ahead of sending it: what it sends in some milliseconds.
#pragma once

#include <chrono>
#include <optional>

#include "reactor.h"
#include "settings.h"

namespace bagua_net {

inline constexpr size_t kFirstChunk = 64 << 10;  // before anything is measured

// The rate is measured between two moments at which the kernel took no more: at both the same is
// left unsent, so what it took between them is what it sent. One thread's own.
class ChunkSize {
 public:
  explicit ChunkSize(const Settings& settings);

  size_t chunk_bytes() const { return asked_chunk_.value_or(size_); }
  size_t unsent_bytes() const { return asked_unsent_.value_or(size_); }
  // The next two are true where the sizes are others than before.
  // The kernel has taken so many bytes more.
  bool on_taken(uint64_t bytes);
  // The kernel takes no more now.
  bool on_full(Clock::time_point now);
  // There is nothing to send: time that passes from here on says nothing about the rate.
  void on_idle();

 private:
  bool become(size_t size);

  const std::optional<size_t> asked_chunk_, asked_unsent_;
  size_t size_ = kFirstChunk;
  uint64_t taken_ = 0;  // since `full_at_`, or since the stream was idle
  std::optional<Clock::time_point> full_at_;
  double bytes_ = 0, seconds_ = 0;  // of late intervals, earlier ones with less weight
};

}  // namespace bagua_net
