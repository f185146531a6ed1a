#include "listener.h"

#include <algorithm>
#include <cerrno>

#include "log.h"

namespace bagua_net {

namespace {

constexpr size_t kMostStrangers = 512;
constexpr std::chrono::seconds kHelloLimit{10};

// Whether what has come of a hello so far may become one of ours.
bool may_be_hello(const Hello& hello, size_t bytes, const Secret& secret) {
  if (bytes == sizeof hello) return is_hello(hello, secret);
  return std::memcmp(&hello.magic, &kHelloMagic, std::min(bytes, sizeof kHelloMagic)) == 0;
}

}  // namespace

Listener::Listener(const Settings& settings, const Address& address, Handle& handle)
    : settings_(settings),
      secret_(random_secret()),
      answer_(random_secret()),
      fd_(listen_at(address)) {
  handle = Handle{};
  handle.magic = kHandleMagic;
  handle.secret = secret_;
  handle.answer = answer_;
  write_address(local_address(fd_), handle);
}

std::unique_ptr<ReceiveConnection> Listener::accept() {
  take_new();
  hear_strangers();
  drop_late();
  const auto whole = std::find_if(groups_.begin(), groups_.end(), [](const Group& group) {
    return group.num_arrived == group.fds.size();
  });
  if (whole == groups_.end()) return nullptr;
  Group group = std::move(*whole);
  groups_.erase(whole);
  return std::make_unique<ReceiveConnection>(settings_, std::move(group.fds), answer_,
                                             group.peer_timeout);
}

void Listener::take_new() {
  while (strangers_.size() < kMostStrangers) {
    Stranger stranger;
    stranger.fd = accept_from(fd_);
    if (stranger.fd.get() < 0) return;
    stranger.since = Clock::now();
    set_options(stranger.fd);
    strangers_.push_back(std::move(stranger));
  }
  strangers_.erase(strangers_.begin());  // the oldest makes room for the next
}

void Listener::hear_strangers() {
  std::vector<Stranger> still;
  for (Stranger& stranger : strangers_) {
    if (!hear(stranger)) {
      log(NCCL_LOG_INFO, "dropped a connection that is none of ours");
    } else if (stranger.bytes < sizeof(Hello)) {
      still.push_back(std::move(stranger));
    } else if (!join_group(stranger)) {
      log(NCCL_LOG_WARN, "dropped a stream that came twice");
    }
  }
  strangers_ = std::move(still);
}

bool Listener::hear(Stranger& stranger) {
  char* const bytes = reinterpret_cast<char*>(&stranger.hello);
  const ssize_t got = recv(stranger.fd.get(), bytes + stranger.bytes,
                           sizeof(Hello) - stranger.bytes, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  stranger.bytes += static_cast<size_t>(got);
  return got > 0 && may_be_hello(stranger.hello, stranger.bytes, secret_);
}

bool Listener::join_group(Stranger& stranger) {
  const Hello& hello = stranger.hello;
  auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& known) {
    return known.connection == hello.connection;
  });
  if (group == groups_.end()) {
    groups_.push_back({hello.connection, Clock::now(),
                       std::chrono::milliseconds(hello.timeout_ms),
                       std::vector<Fd>(hello.num_streams), 0});
    group = groups_.end() - 1;
  }
  if (hello.num_streams != group->fds.size() || group->fds[hello.index].get() >= 0) return false;
  group->fds[hello.index] = std::move(stranger.fd);
  ++group->num_arrived;
  return true;
}

void Listener::drop_late() {
  const auto now = Clock::now();
  const auto is_late = [&](const Stranger& stranger) { return now - stranger.since > kHelloLimit; };
  strangers_.erase(std::remove_if(strangers_.begin(), strangers_.end(), is_late), strangers_.end());
  const auto is_stale = [&](const Group& group) {
    return now - group.since > settings_.timeout && group.num_arrived < group.fds.size();
  };
  groups_.erase(std::remove_if(groups_.begin(), groups_.end(), is_stale), groups_.end());
}

}  // namespace bagua_net
