// The sending end: messages are cut into chunks, which the streams take as they become writable.
#pragma once

#include <deque>
#include <optional>

#include "chunk_size.h"
#include "connection.h"
#include "tuner.h"

namespace bagua_net {

class SendStream;

class SendConnection final : public Connection {
 public:
  // `fds` are connected, and have sent their hellos.
  SendConnection(const Settings& settings, std::vector<Fd> fds, const Secret& answer);
  // Waits, for a while, until the peer's kernel has all that was sent.
  ~SendConnection() override;

  ncclResult_t isend(void* data, uint64_t size, Request** request);

 private:
  friend class SendStream;

  struct Chunk {
    ChunkHeader header;
    Request* request;
  };

  std::optional<Chunk> take_locked(int index, size_t largest);
  std::optional<Chunk> cut_locked(Request& request, uint64_t offset, uint64_t length);
  void finish_locked(const Chunk& chunk);
  void wake_idle_locked(uint64_t num_chunks);
  void tune_locked();
  void flush();
  void log_sizes();
  SendStream& stream(size_t index);

  const Secret answer_;
  std::deque<Request*> queue_;  // those with bytes that no stream has taken
  uint64_t unclaimed_ = 0;      // such bytes, of all of them
  size_t num_unfinished_ = 0;
  Tuner tuner_;
  size_t num_active_;  // streams that take chunks: the first so many
  size_t next_woken_ = 0;
};

class SendStream final : public Stream {
 public:
  SendStream(SendConnection& connection, int index, Fd fd, Reactor& reactor,
             const Settings& settings);

  void on_events(uint32_t events) override;

 private:
  friend class SendConnection;

  bool expects_peer() override;
  void beat() override;
  bool read_answers();
  void send_chunks();
  bool next_chunk();
  bool send_rest();
  SendConnection& owner();

  Welcome welcome_{};
  size_t welcome_bytes_ = 0;
  bool is_welcome_ = false;
  std::optional<SendConnection::Chunk> chunk_;
  ChunkSize size_;
  uint64_t sent_ = 0;     // of the header and payload of `chunk_`
  bool is_idle_ = false;  // guarded by the connection's mutex
};

}  // namespace bagua_net
