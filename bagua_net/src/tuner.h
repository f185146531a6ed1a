// How many streams and which congestion control, where the environment does not say: decided from
// the loss and rate of the first megabytes.
#pragma once

#include <string>

#include "reactor.h"
#include "settings.h"

namespace bagua_net {

inline constexpr int kAutoStreams = 8;   // where no number is asked for, at first and on loss
inline constexpr int kCleanStreams = 4;  // where one link without loss is all that there is

struct Choice {
  size_t streams;
  std::string congestion;  // empty: as it is
  std::string why;
};

class Tuner {
 public:
  Tuner(const Settings& settings, size_t num_streams);

  // Something is to be sent from now on, or nothing more: the rate counts the time between.
  void begin();
  void end();
  // Counts bytes that were sent; true at the moments to decide.
  bool is_due(uint64_t bytes);
  // From what the streams counted since the connection began.
  Choice choose(const LinkCounts& counts);

 private:
  const bool chooses_streams_, chooses_congestion_;
  const size_t num_streams_;
  uint64_t bytes_ = 0;
  uint64_t due_;
  bool is_busy_ = false;
  Clock::time_point began_;
  Clock::duration busy_{0};  // before `began_`
};

}  // namespace bagua_net
