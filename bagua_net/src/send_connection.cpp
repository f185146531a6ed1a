#include "send_connection.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "log.h"

namespace bagua_net {

namespace {

constexpr std::chrono::seconds kFlush{5};
constexpr uint64_t kSmallestChunk = 32 << 10;
constexpr int kChunksAtOnce = 8;  // of one stream, before its reactor looks at the others
constexpr uint32_t kListening = EPOLLIN;
constexpr uint32_t kSending = EPOLLIN | EPOLLOUT;

}  // namespace

SendConnection::SendConnection(const Settings& settings, std::vector<Fd> fds, const Secret& answer)
    : Connection(settings, fds.size()),
      answer_(answer),
      tuner_(settings, fds.size()),
      num_active_(fds.size()) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < fds.size(); ++i) {
    streams_.push_back(std::make_unique<SendStream>(*this, static_cast<int>(i), std::move(fds[i]),
                                                    pool_->next(), settings));
  }
  for (const auto& stream : streams_) {
    stream->reactor().add(stream->fd(), kListening, stream.get());
  }
}

SendConnection::~SendConnection() {
  flush();
  stop_streams();
  log_sizes();
  // A close with unread beats would reset the connection, and the peer might lose what it has.
  char beats[256];
  for (const auto& stream : streams_) {
    while (recv(stream->fd().get(), beats, sizeof beats, MSG_DONTWAIT) > 0) continue;
  }
}

void SendConnection::log_sizes() {
  std::string sizes;
  for (size_t i = 0; i < streams_.size(); ++i) {
    sizes += " " + std::to_string(stream(i).size_.chunk_bytes() >> 10);
  }
  log(NCCL_LOG_INFO, "closed; chunks at the end, in KiB, by stream:%s", sizes.c_str());
}

void SendConnection::flush() {
  const auto limit = std::min<Clock::duration>(kFlush, settings_.timeout);
  const auto until = Clock::now() + limit;
  for (const auto& stream : streams_) {
    while (unacknowledged_bytes(stream->fd()) > 0 && !has_failed() && Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }
}

SendStream& SendConnection::stream(size_t index) {
  return static_cast<SendStream&>(*streams_[index]);
}

ncclResult_t SendConnection::isend(void* data, uint64_t size, Request** request) {
  *request = nullptr;
  if (size > kLargestMessage) return ncclInvalidUsage;
  const std::lock_guard lock(mutex_);
  if (failure_ != ncclSuccess) return failure_;
  Request* added = new_request(data, size);
  if (added == nullptr) return ncclSuccess;
  added->total = size;
  queue_.push_back(added);
  unclaimed_ += size;
  ++num_unfinished_;
  tuner_.begin();
  wake_idle_locked(settings_.is_static ? num_active_ : size / kFirstChunk + 1);
  *request = added;
  return ncclSuccess;
}

void SendConnection::wake_idle_locked(uint64_t num_chunks) {
  for (size_t i = 0; i < num_active_ && num_chunks > 0; ++i) {
    SendStream& candidate = stream(next_woken_++ % num_active_);
    if (!candidate.is_idle_ || !candidate.is_live_) continue;
    candidate.is_idle_ = false;
    candidate.reactor().change(candidate.fd(), kSending, &candidate);
    --num_chunks;
  }
}

// The next chunk for a stream. Chunks shrink towards the end of all that is to be sent, so that the
// last ones end at about the same time; not at the end of a message that another one follows.
std::optional<SendConnection::Chunk> SendConnection::take_locked(int index, size_t largest) {
  if (static_cast<size_t>(index) >= num_active_) return std::nullopt;
  if (!settings_.is_static) {
    if (queue_.empty()) return std::nullopt;
    Request& request = *queue_.front();
    const uint64_t left = request.total - request.claimed;
    const uint64_t guided = std::max(kSmallestChunk, unclaimed_ / (2 * num_active_));
    return cut_locked(request, request.claimed, std::min({left, guided, uint64_t{largest}}));
  }
  for (Request* request : queue_) {
    const uint64_t bit = uint64_t{1} << index;
    if (request->parts & bit) continue;
    request->parts |= bit;
    const uint64_t part = request->total / num_active_;
    const uint64_t offset = part * index;
    const bool is_last = static_cast<size_t>(index) + 1 == num_active_;
    const uint64_t length = is_last ? request->total - offset : part;
    if (length > 0 || request->total == 0) return cut_locked(*request, offset, length);
  }
  return std::nullopt;
}

std::optional<SendConnection::Chunk> SendConnection::cut_locked(Request& request, uint64_t offset,
                                                                uint64_t length) {
  request.claimed += length;
  unclaimed_ -= length;
  if (request.claimed == request.total) {
    queue_.erase(std::find(queue_.begin(), queue_.end(), &request));
  }
  return Chunk{{kChunkMagic, kData, request.sequence, request.total, offset, length}, &request};
}

void SendConnection::finish_locked(const Chunk& chunk) {
  if (chunk.request == nullptr) return;
  chunk.request->moved += chunk.header.length;
  if (tuner_.is_due(chunk.header.length)) tune_locked();
  if (chunk.request->moved < chunk.request->total) return;
  chunk.request->is_done = true;
  if (--num_unfinished_ == 0) tuner_.end();
}

void SendConnection::tune_locked() {
  LinkCounts sum;
  for (size_t i = 0; i < num_active_; ++i) {
    const LinkCounts counts = link_counts(streams_[i]->fd());
    sum.segments += counts.segments;
    sum.retransmitted += counts.retransmitted;
    sum.round_trip_ms = std::max(sum.round_trip_ms, counts.round_trip_ms);
  }
  const Choice choice = tuner_.choose(sum);
  bool is_set = !choice.congestion.empty();
  for (const auto& stream : streams_) {
    is_set = is_set && set_congestion(stream->fd(), choice.congestion);
  }
  log(NCCL_LOG_INFO, "%s: %zu of %zu streams, congestion control %s", choice.why.c_str(),
      choice.streams, streams_.size(), is_set ? choice.congestion.c_str() : "unchanged");
  num_active_ = choice.streams;
  wake_idle_locked(num_active_);
}

SendStream::SendStream(SendConnection& connection, int index, Fd fd, Reactor& reactor,
                       const Settings& settings)
    // Which timeout the peer has, its welcome says; nothing is sent before that.
    : Stream(connection, index, std::move(fd), reactor, settings.timeout), size_(settings) {
  set_unsent(fd_, size_.unsent_bytes());
}

SendConnection& SendStream::owner() { return static_cast<SendConnection&>(connection_); }

bool SendStream::expects_peer() { return is_welcome_; }

void SendStream::beat() {
  if (!is_welcome_ || chunk_) return;
  chunk_ = SendConnection::Chunk{{kChunkMagic, kPing, 0, 0, 0, 0}, nullptr};
  sent_ = 0;
  {
    const std::lock_guard lock(owner().mutex_);
    is_idle_ = false;
    if (!is_live_ || owner().failure_ != ncclSuccess) return;
    reactor_.change(fd_, kSending, this);
  }
  send_chunks();
}

void SendStream::on_events(uint32_t events) {
  {
    const std::lock_guard lock(owner().mutex_);
    if (owner().failure_ != ncclSuccess) return owner().retire_locked(*this);
  }
  if ((events & ~uint32_t{EPOLLOUT}) != 0 && !read_answers()) return;
  if (is_welcome_ && (events & EPOLLOUT) != 0) send_chunks();
}

// What the peer says: a welcome, then beats. False: the connection has failed.
bool SendStream::read_answers() {
  char bytes[256];
  const ssize_t got = recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) {
    owner().fail(ncclRemoteError, got == 0 ? "the receiver has closed" : std::strerror(errno));
    return false;
  }
  heard_at_ = Clock::now();
  size_t used = 0;
  if (!is_welcome_) {
    used = std::min(sizeof welcome_ - welcome_bytes_, static_cast<size_t>(got));
    std::memcpy(reinterpret_cast<char*>(&welcome_) + welcome_bytes_, bytes, used);
    welcome_bytes_ += used;
    if (welcome_bytes_ < sizeof welcome_) return true;
    if (!bagua_net::is_welcome(welcome_, owner().answer_)) {
      owner().fail(ncclRemoteError, "another program answered at the receiver's address");
      return false;
    }
    peer_timeout_ = std::chrono::milliseconds(welcome_.timeout_ms);
    is_welcome_ = true;
    const std::lock_guard lock(owner().mutex_);
    reactor_.change(fd_, kSending, this);
  }
  if (std::any_of(bytes + used, bytes + got, [](char byte) { return byte != kBeat; })) {
    owner().fail(ncclRemoteError, "the receiver sent what it should not");
    return false;
  }
  return true;
}

void SendStream::send_chunks() {
  for (int i = 0; i < kChunksAtOnce; ++i) {
    if (!chunk_ && !next_chunk()) return;
    if (!send_rest()) return;
  }
}

// False: there is none, and the stream is idle.
bool SendStream::next_chunk() {
  const std::lock_guard lock(owner().mutex_);
  if (owner().failure_ != ncclSuccess) return false;
  chunk_ = owner().take_locked(index_, size_.chunk_bytes());
  sent_ = 0;
  if (chunk_) return true;
  is_idle_ = true;
  size_.on_idle();
  reactor_.change(fd_, kListening, this);
  return false;
}

// False: the kernel takes no more now, or the stream has failed.
bool SendStream::send_rest() {
  ChunkHeader& header = chunk_->header;
  while (sent_ < sizeof header + header.length) {
    const uint64_t payload = sent_ < sizeof header ? 0 : sent_ - sizeof header;
    const uint64_t head = std::min<uint64_t>(sent_, sizeof header);
    iovec parts[2] = {{reinterpret_cast<char*>(&header) + head, sizeof header - head}, {}};
    if (chunk_->request != nullptr) {
      parts[1] = {chunk_->request->data + header.offset + payload, header.length - payload};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {
        owner().fail(ncclRemoteError, std::strerror(errno));
      } else if (size_.on_full(Clock::now())) {
        set_unsent(fd_, size_.unsent_bytes());
      }
      return false;
    }
    sent_ += static_cast<uint64_t>(sent);
    if (size_.on_taken(static_cast<uint64_t>(sent))) set_unsent(fd_, size_.unsent_bytes());
    spoke_at_ = Clock::now();
  }
  const std::lock_guard lock(owner().mutex_);
  owner().finish_locked(*chunk_);
  chunk_.reset();
  return true;
}

}  // namespace bagua_net
