// The connecting side of the handshake, one step at each call of `connect`.
#pragma once

#include <memory>
#include <vector>

#include "send_connection.h"

namespace bagua_net {

class Connector {
 public:
  // Throws std::system_error where connecting cannot even begin.
  Connector(const Settings& settings, const Handle& handle);

  // The connection once all streams are connected; null: not yet. Never blocks, and needs no
  // accept of the peer. Throws std::system_error where the peer cannot be reached.
  std::unique_ptr<SendConnection> step();
  bool is_late() const;

 private:
  bool step(size_t index);

  const Settings settings_;
  const Handle handle_;
  const Secret connection_;
  const Clock::time_point since_;
  std::vector<Fd> fds_;
  std::vector<bool> has_said_hello_;
};

}  // namespace bagua_net
