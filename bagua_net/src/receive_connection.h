// The receiving end: every chunk says where it belongs, so any stream may bring it.
#pragma once

#include "connection.h"

namespace bagua_net {

class ReceiveStream;

class ReceiveConnection final : public Connection {
 public:
  // `fds` have brought their hellos, with the peer's timeout; each is told `answer` and ours.
  ReceiveConnection(const Settings& settings, std::vector<Fd> fds, const Secret& answer,
                    std::chrono::milliseconds peer_timeout);
  ~ReceiveConnection() override;

  ncclResult_t irecv(void* data, uint64_t size, Request** request);

 private:
  friend class ReceiveStream;

  // What becomes of a chunk whose header has come.
  enum class Place { kReady, kWaits, kFailed };
  Place place_locked(ReceiveStream& stream);
  void finish_locked(ReceiveStream& stream);
  void end_locked(ReceiveStream& stream);
  void fail_if_doomed_locked();
  void on_failure_locked() override;
  Request* find_locked(uint64_t sequence);
  ReceiveStream& stream(size_t index);
};

class ReceiveStream final : public Stream {
 public:
  using Stream::Stream;

  void on_events(uint32_t events) override;

 private:
  friend class ReceiveConnection;

  bool expects_peer() override;
  void beat() override;
  void read_chunks();
  ssize_t read_some();
  bool take_in(size_t num_bytes);
  bool begin_chunk();
  void end_of_stream(int error);
  ReceiveConnection& owner();

  // While the stream waits, these are guarded by the connection's mutex; else the reactor's own.
  ChunkHeader header_{};
  size_t header_bytes_ = 0;
  Request* request_ = nullptr;  // of the chunk that is coming in
  uint64_t payload_bytes_ = 0;  // of it that have come
  bool is_waiting_ = false;     // for the irecv of its chunk
  bool is_detached_ = false;    // it waits, and the peer has hung up
};

}  // namespace bagua_net
