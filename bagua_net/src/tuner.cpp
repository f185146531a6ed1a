#include "tuner.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace bagua_net {

namespace {

constexpr uint64_t kFirstDecision = 8 << 20;
constexpr uint64_t kLastDecision = 32 << 20;  // the one before may have seen too few segments
// A loss that a full queue does not explain; CUBIC's window is small from here on.
constexpr double kLossy = 0.0003;
constexpr uint64_t kFewLosses = 4;  // so many happen without a cause that lasts
// What one stream's thread and socket carry without effort.
constexpr double kFastMbit = 8000;
constexpr const char* kLossTolerant = "bbr";

}  // namespace

Tuner::Tuner(const Settings& settings, size_t num_streams)
    : chooses_streams_(!settings.streams && !settings.is_static),
      chooses_congestion_(!settings.congestion),
      num_streams_(num_streams),
      due_(chooses_streams_ || chooses_congestion_ ? kFirstDecision
                                                   : std::numeric_limits<uint64_t>::max()) {}

void Tuner::begin() {
  if (is_busy_) return;
  is_busy_ = true;
  began_ = Clock::now();
}

void Tuner::end() {
  if (is_busy_) busy_ += Clock::now() - began_;
  is_busy_ = false;
}

bool Tuner::is_due(uint64_t bytes) {
  bytes_ += bytes;
  if (bytes_ < due_) return false;
  due_ = due_ < kLastDecision ? 2 * due_ : std::numeric_limits<uint64_t>::max();
  return true;
}

Choice Tuner::choose(const LinkCounts& counts) {
  const auto busy = busy_ + (is_busy_ ? Clock::now() - began_ : Clock::duration{0});
  const double seconds = std::chrono::duration<double>(busy).count();
  const double mbit = 8e-6 * static_cast<double>(bytes_) / std::max(seconds, 1e-6);
  const double loss = static_cast<double>(counts.retransmitted) /
                      static_cast<double>(std::max<uint64_t>(counts.segments, 1));
  const bool is_lossy = loss > kLossy && counts.retransmitted > kFewLosses;
  Choice choice{num_streams_, "", ""};
  if (chooses_streams_ && !is_lossy && mbit < kFastMbit) choice.streams = kCleanStreams;
  if (chooses_congestion_ && is_lossy) choice.congestion = kLossTolerant;
  char why[160];
  std::snprintf(why, sizeof why, "after %.0f MiB loss %.3f %%, %.0f Mbit/s, round trip %.1f ms",
                static_cast<double>(bytes_) / (1 << 20), 100 * loss, mbit, counts.round_trip_ms);
  choice.why = why;
  return choice;
}

}  // namespace bagua_net
