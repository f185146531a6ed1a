// The environment variables; docs/bagua_net.md describes each.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace bagua_net {

struct Settings {
  std::optional<int> streams;             // BAGUA_NET_STREAMS; none: chosen by measurement
  std::optional<std::string> congestion;  // BAGUA_NET_CONGESTION; none: likewise; "system": as is
  bool is_static = false;                 // BAGUA_NET_SPLIT=static
  std::optional<size_t> chunk_bytes;      // BAGUA_NET_CHUNK_KB; none: by each stream's rate
  std::optional<size_t> unsent_bytes;     // BAGUA_NET_UNSENT_KB; likewise
  std::chrono::milliseconds timeout{30'000};  // BAGUA_NET_TIMEOUT_S
  int threads = 1;                            // BAGUA_NET_THREADS

  // As the peer is told it.
  uint32_t timeout_ms() const { return static_cast<uint32_t>(timeout.count()); }
};

// As the environment is now. Throws std::invalid_argument, one sentence, for a value that is wrong.
Settings read_settings();

}  // namespace bagua_net
