// Where connections come in, and the handshake that tells ours from foreign ones.
#pragma once

#include <memory>
#include <vector>

#include "interfaces.h"
#include "receive_connection.h"

namespace bagua_net {

// All is done within `accept`, which never blocks: there is no thread here.
class Listener {
 public:
  // Writes what the connecting side has to know.
  Listener(const Settings& settings, const Address& address, Handle& handle);

  // The next connection whose streams are all there; null: none yet.
  std::unique_ptr<ReceiveConnection> accept();

 private:
  // A socket of which nothing is known yet.
  struct Stranger {
    Fd fd;
    Clock::time_point since;
    Hello hello{};
    size_t bytes = 0;
  };
  // A connection of which some streams are there.
  struct Group {
    Secret connection;
    Clock::time_point since;
    std::chrono::milliseconds peer_timeout;  // as the first stream has said
    std::vector<Fd> fds;
    size_t num_arrived = 0;
  };

  void take_new();
  void hear_strangers();
  void drop_late();
  // False: the stranger is none of ours, or is gone.
  bool hear(Stranger& stranger);
  bool join_group(Stranger& stranger);

  const Settings settings_;
  const Secret secret_, answer_;
  Fd fd_;
  std::vector<Stranger> strangers_;
  std::vector<Group> groups_;
};

}  // namespace bagua_net
