#include "connection.h"

#include <algorithm>
#include <climits>

#include "log.h"

namespace bagua_net {

Stream::Stream(Connection& connection, int index, Fd fd, Reactor& reactor,
               std::chrono::milliseconds peer_timeout)
    : connection_(connection),
      index_(index),
      fd_(std::move(fd)),
      reactor_(reactor),
      peer_timeout_(peer_timeout),
      heard_at_(Clock::now()),
      spoke_at_(heard_at_) {}

void Stream::on_tick(Clock::time_point now, bool was_away) {
  if (was_away || !expects_peer()) heard_at_ = now;
  if (now - heard_at_ > connection_.settings_.timeout) {
    connection_.fail(ncclRemoteError, "the peer is silent for longer than BAGUA_NET_TIMEOUT_S");
  } else if (now - spoke_at_ > peer_timeout_ / 4) {
    beat();
  }
}

Connection::Connection(const Settings& settings, size_t num_streams)
    : settings_(settings), pool_(ReactorPool::get(settings.threads)), num_live_(num_streams) {
  for (Request& request : requests_) request.connection = this;
}

Request* Connection::new_request(void* data, uint64_t size) {
  const auto free = std::find_if(requests_.begin(), requests_.end(),
                                 [](const Request& request) { return !request.is_used; });
  if (free == requests_.end()) return nullptr;
  *free = Request{};
  free->connection = this;
  free->is_used = true;
  free->sequence = num_requests_++;
  free->data = static_cast<char*>(data);
  free->size = size;
  return &*free;
}

ncclResult_t Connection::test(Request* request, int* done, int* sizes) {
  const std::lock_guard lock(mutex_);
  *done = 0;
  if (request->is_done) {
    *done = 1;
    if (sizes != nullptr) *sizes = static_cast<int>(std::min<uint64_t>(request->total, INT_MAX));
    request->is_used = false;
    return ncclSuccess;
  }
  // Its memory is the caller's again only when no stream is at work on it.
  if (failure_ == ncclSuccess || num_live_ > 0) return ncclSuccess;
  request->is_used = false;
  return failure_;
}

bool Connection::has_failed() {
  const std::lock_guard lock(mutex_);
  return failure_ != ncclSuccess;
}

void Connection::fail(ncclResult_t result, const char* why) {
  const std::lock_guard lock(mutex_);
  fail_locked(result, why);
}

void Connection::fail_locked(ncclResult_t result, const char* why) {
  if (failure_ != ncclSuccess) return;
  failure_ = result;
  const bool is_missed = std::any_of(requests_.begin(), requests_.end(), [](const Request& r) {
    return r.is_used && !r.is_done;
  });
  log(is_missed ? NCCL_LOG_WARN : NCCL_LOG_INFO, "connection ended: %s", why);
  // Each stream's reactor sees the hang-up, and retires it.
  for (const auto& stream : streams_) {
    if (stream->is_live_) (void)shutdown(stream->fd().get(), SHUT_RDWR);
  }
  on_failure_locked();
}

void Connection::retire_locked(Stream& stream) {
  if (!stream.is_live_) return;
  stream.is_live_ = false;
  --num_live_;
  stream.reactor().remove_here(stream.fd(), &stream);
}

void Connection::stop_streams() {
  for (const auto& stream : streams_) stream->reactor().remove(stream->fd(), stream.get());
}

}  // namespace bagua_net
