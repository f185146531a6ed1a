#include "chunk_size.h"

#include <algorithm>
#include <utility>

namespace bagua_net {

namespace {

constexpr size_t kLeast = 32 << 10;
constexpr size_t kMost = 512 << 10;
constexpr double kSecondsAChunk = 0.008;
constexpr double kWeightOfEarlier = 0.75;
constexpr uint64_t kChunksAtEase = 4;

}  // namespace

ChunkSize::ChunkSize(const Settings& settings)
    : asked_chunk_(settings.chunk_bytes), asked_unsent_(settings.unsent_bytes) {}

bool ChunkSize::on_full(Clock::time_point now) {
  if (full_at_) {
    bytes_ = kWeightOfEarlier * bytes_ + static_cast<double>(taken_);
    seconds_ = kWeightOfEarlier * seconds_ + std::chrono::duration<double>(now - *full_at_).count();
  }
  full_at_ = now;
  taken_ = 0;
  if (bytes_ < kLeast) return false;
  const double wanted = kSecondsAChunk * bytes_ / std::max(seconds_, 1e-9);
  size_t size = kLeast;
  while (size < kMost && static_cast<double>(size) < wanted) size *= 2;
  return become(size);
}

// A stream whose kernel is never full is fast, as long as nothing was measured.
bool ChunkSize::on_taken(uint64_t bytes) {
  taken_ += bytes;
  if (full_at_ || seconds_ > 0 || taken_ < kChunksAtEase * size_) return false;
  taken_ = 0;
  return become(std::min(2 * size_, kMost));
}

void ChunkSize::on_idle() {
  full_at_.reset();
  taken_ = 0;
}

bool ChunkSize::become(size_t size) { return std::exchange(size_, size) != size; }

}  // namespace bagua_net
