#include "receive_connection.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace bagua_net {

namespace {

constexpr int kReadsAtOnce = 16;  // of one stream, before its reactor looks at the others
constexpr uint32_t kHungUp = EPOLLHUP | EPOLLERR | EPOLLRDHUP;

}  // namespace

ReceiveConnection::ReceiveConnection(const Settings& settings, std::vector<Fd> fds,
                                     const Secret& answer,
                                     std::chrono::milliseconds peer_timeout)
    : Connection(settings, fds.size()) {
  const Welcome welcome{kWelcomeMagic, settings.timeout_ms(), answer};
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < fds.size(); ++i) {
    // The first bytes on an empty socket: taken whole, or the stream is dead and its reactor sees.
    (void)send(fds[i].get(), &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL);
    streams_.push_back(std::make_unique<ReceiveStream>(*this, static_cast<int>(i),
                                                       std::move(fds[i]), pool_->next(),
                                                       peer_timeout));
  }
  for (const auto& stream : streams_) stream->reactor().add(stream->fd(), EPOLLIN, stream.get());
}

ReceiveConnection::~ReceiveConnection() { stop_streams(); }

ReceiveStream& ReceiveConnection::stream(size_t index) {
  return static_cast<ReceiveStream&>(*streams_[index]);
}

ncclResult_t ReceiveConnection::irecv(void* data, uint64_t size, Request** request) {
  *request = nullptr;
  const std::lock_guard lock(mutex_);
  if (failure_ != ncclSuccess) return failure_;
  *request = new_request(data, size);
  if (*request == nullptr) return ncclSuccess;
  for (size_t i = 0; i < streams_.size(); ++i) {
    ReceiveStream& waiting = stream(i);
    if (!waiting.is_waiting_ || place_locked(waiting) != Place::kReady) continue;
    if (waiting.is_detached_) {
      waiting.is_detached_ = false;
      waiting.reactor().attach(waiting.fd(), EPOLLIN, &waiting);
    } else {
      waiting.reactor().change(waiting.fd(), EPOLLIN, &waiting);
    }
  }
  fail_if_doomed_locked();
  return ncclSuccess;
}

Request* ReceiveConnection::find_locked(uint64_t sequence) {
  const auto found =
      std::find_if(requests_.begin(), requests_.end(), [&](const Request& request) {
        return request.is_used && !request.is_done && request.sequence == sequence;
      });
  return found == requests_.end() ? nullptr : &*found;
}

// Finds the memory of the chunk that `stream.header_` announces; every length is checked here.
ReceiveConnection::Place ReceiveConnection::place_locked(ReceiveStream& stream) {
  const ChunkHeader& header = stream.header_;
  stream.is_waiting_ = header.sequence >= num_requests_;
  if (stream.is_waiting_) return Place::kWaits;
  Request* request = find_locked(header.sequence);
  if (request == nullptr) {
    fail_locked(ncclRemoteError, "a chunk of a message that is complete");
    return Place::kFailed;
  }
  if (header.total > request->size) {
    fail_locked(ncclInvalidUsage, "a message is larger than the memory posted for it");
    return Place::kFailed;
  }
  if (request->claimed > 0 && request->total != header.total) {
    fail_locked(ncclRemoteError, "two chunks disagree about the size of their message");
    return Place::kFailed;
  }
  if (!request->claims.take(header.offset, header.offset + header.length)) {
    fail_locked(ncclRemoteError, "two chunks have the same bytes of their message");
    return Place::kFailed;
  }
  request->total = header.total;
  request->claimed += header.length;
  stream.request_ = request;
  stream.payload_bytes_ = 0;
  if (header.length == 0) finish_locked(stream);
  return Place::kReady;
}

void ReceiveConnection::finish_locked(ReceiveStream& stream) {
  Request& request = *stream.request_;
  request.moved += stream.header_.length;
  if (request.moved == request.total) request.is_done = true;
  stream.request_ = nullptr;
  stream.header_bytes_ = 0;
}

void ReceiveConnection::end_locked(ReceiveStream& stream) {
  retire_locked(stream);
  if (num_live_ == 0) return fail_locked(ncclRemoteError, "the sender has closed");
  fail_if_doomed_locked();
}

// What has come on a stream that waits is of later messages than any that was posted. So once the
// sender has closed and all streams wait, no posted message can become whole.
void ReceiveConnection::fail_if_doomed_locked() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (stream(i).is_live_ && !stream(i).is_detached_) return;
  }
  const bool is_missed = std::any_of(requests_.begin(), requests_.end(), [](const Request& r) {
    return r.is_used && !r.is_done;
  });
  if (is_missed) fail_locked(ncclRemoteError, "the sender has closed amid a message");
}

void ReceiveConnection::on_failure_locked() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (stream(i).is_detached_) retire_locked(stream(i));  // its reactor will not see the hang-up
  }
}

ReceiveConnection& ReceiveStream::owner() { return static_cast<ReceiveConnection&>(connection_); }

// A stream that waits for an irecv does not read, so it cannot hear.
bool ReceiveStream::expects_peer() {
  const std::lock_guard lock(owner().mutex_);
  return !is_waiting_ && is_live_;
}

void ReceiveStream::beat() {
  {
    const std::lock_guard lock(owner().mutex_);
    if (!is_live_ || is_detached_) return;
  }
  spoke_at_ = Clock::now();
  (void)send(fd_.get(), &kBeat, 1, MSG_DONTWAIT | MSG_NOSIGNAL);  // epoll tells of errors
}

void ReceiveStream::on_events(uint32_t events) {
  {
    const std::lock_guard lock(owner().mutex_);
    if (owner().failure_ != ncclSuccess) return owner().retire_locked(*this);
    if (is_waiting_) {
      if ((events & kHungUp) == 0 || is_detached_) return;
      is_detached_ = true;  // what has come may still be asked for
      reactor_.detach(fd_);
      return owner().fail_if_doomed_locked();
    }
  }
  read_chunks();
}

void ReceiveStream::read_chunks() {
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t got = read_some();
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return end_of_stream(got == 0 ? 0 : errno);
    heard_at_ = Clock::now();
    if (!take_in(static_cast<size_t>(got))) return;
  }
}

// The rest of a payload, or of a header.
ssize_t ReceiveStream::read_some() {
  char* const header = reinterpret_cast<char*>(&header_);
  if (request_ == nullptr) {
    return recv(fd_.get(), header + header_bytes_, sizeof header_ - header_bytes_, MSG_DONTWAIT);
  }
  return recv(fd_.get(), request_->data + header_.offset + payload_bytes_,
              header_.length - payload_bytes_, MSG_DONTWAIT);
}

// False: the stream has to stop for now.
bool ReceiveStream::take_in(size_t num_bytes) {
  if (request_ == nullptr) {
    header_bytes_ += num_bytes;
    return header_bytes_ < sizeof header_ || begin_chunk();
  }
  payload_bytes_ += num_bytes;
  if (payload_bytes_ < header_.length) return true;
  const std::lock_guard lock(owner().mutex_);
  owner().finish_locked(*this);
  return true;
}

bool ReceiveStream::begin_chunk() {
  if (!is_sound(header_)) {
    owner().fail(ncclRemoteError, "a header that no sender of this kind writes");
    return false;
  }
  if (header_.kind == kPing) {
    header_bytes_ = 0;
    return true;
  }
  const std::lock_guard lock(owner().mutex_);
  if (owner().failure_ != ncclSuccess) return false;
  const auto place = owner().place_locked(*this);
  if (place == ReceiveConnection::Place::kWaits) reactor_.change(fd_, EPOLLRDHUP, this);
  return place == ReceiveConnection::Place::kReady;
}

void ReceiveStream::end_of_stream(int error) {
  const bool is_between_chunks = request_ == nullptr && header_bytes_ == 0;
  const std::lock_guard lock(owner().mutex_);
  if (is_between_chunks && (error == 0 || error == ECONNRESET)) return owner().end_locked(*this);
  owner().fail_locked(ncclRemoteError, error == 0 ? "the sender has died" : std::strerror(error));
}

}  // namespace bagua_net
