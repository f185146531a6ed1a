// What both ends of a connection share: requests, streams, failure and close.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "claims.h"
#include "reactor.h"
#include "settings.h"

namespace bagua_net {

class Connection;

// One isend or irecv. Guarded by the connection's mutex.
struct Request {
  Connection* connection = nullptr;
  bool is_used = false;
  bool is_done = false;
  uint64_t sequence = 0;
  char* data = nullptr;
  uint64_t size = 0;     // of the memory
  uint64_t total = 0;    // of the message
  uint64_t claimed = 0;  // bytes of it that streams have taken
  uint64_t moved = 0;    // bytes of it that streams are done with
  uint64_t parts = 0;    // static split: bit i is set once stream i has its part
  Claims claims;         // of a receive: where those bytes are
};

// One TCP connection of several. Its reactor calls it; what others touch says so.
class Stream : public Pollable {
 public:
  Stream(Connection& connection, int index, Fd fd, Reactor& reactor,
         std::chrono::milliseconds peer_timeout);

  void on_tick(Clock::time_point now, bool was_away) final;
  const Fd& fd() const { return fd_; }
  Reactor& reactor() const { return reactor_; }

 protected:
  friend class Connection;

  // Whether the peer has to be heard of now, and has to hear of us.
  virtual bool expects_peer() = 0;
  // Says something, where nothing was said for long.
  virtual void beat() = 0;

  Connection& connection_;
  const int index_;
  Fd fd_;
  Reactor& reactor_;
  std::chrono::milliseconds peer_timeout_;  // by which it will judge us
  Clock::time_point heard_at_, spoke_at_;
  bool is_live_ = true;  // guarded by the connection's mutex
};

class Connection {
 public:
  virtual ~Connection() = default;

  // Done, not yet, or failed. A request that is done or failed is gone.
  ncclResult_t test(Request* request, int* done, int* sizes);
  // Wakes and fails whatever waits here; `why` goes to the log. The first failure counts.
  void fail(ncclResult_t result, const char* why);
  bool has_failed();

 protected:
  friend class Stream;

  Connection(const Settings& settings, size_t num_streams);

  // Null where all are in use.
  Request* new_request(void* data, uint64_t size);
  // Those that follow need the lock.
  void fail_locked(ncclResult_t result, const char* why);
  virtual void on_failure_locked() {}
  // The stream takes no further part. Only on its reactor.
  void retire_locked(Stream& stream);
  // Takes all streams off their reactors; none of them runs once this returns.
  void stop_streams();

  const Settings settings_;
  std::mutex mutex_;
  ncclResult_t failure_ = ncclSuccess;
  std::array<Request, NCCL_NET_MAX_REQUESTS> requests_;
  uint64_t num_requests_ = 0;  // ever
  std::shared_ptr<ReactorPool> pool_;
  std::vector<std::unique_ptr<Stream>> streams_;
  size_t num_live_ = 0;
};

}  // namespace bagua_net
