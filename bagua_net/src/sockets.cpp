#include "sockets.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>

namespace bagua_net {

namespace {

constexpr int kBacklog = 4096;
constexpr int kKeepaliveIdleS = 15;
constexpr int kKeepaliveIntervalS = 5;
constexpr int kKeepaliveCount = 3;

void set_option(const Fd& fd, int level, int name, int value) {
  // Each is an improvement, not a need; socketpairs of the fuzzer have none of TCP's.
  (void)setsockopt(fd.get(), level, name, &value, sizeof value);
}

}  // namespace

Fd::~Fd() { reset(); }

void Fd::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void raise_system(const char* doing) {
  throw std::system_error(errno, std::generic_category(), doing);
}

Address address_of(const Handle& handle) {
  Address address;
  if (handle.magic != kHandleMagic) return address;
  if (handle.family == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(handle.port);
    std::memcpy(&in.sin_addr, handle.address, sizeof in.sin_addr);
    std::memcpy(&address.storage, &in, sizeof in);
    address.length = sizeof in;
  } else if (handle.family == AF_INET6) {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(handle.port);
    std::memcpy(&in.sin6_addr, handle.address, sizeof in.sin6_addr);
    std::memcpy(&address.storage, &in, sizeof in);
    address.length = sizeof in;
  }
  return address;
}

void write_address(const sockaddr_storage& from, Handle& handle) {
  handle.family = from.ss_family;
  if (from.ss_family == AF_INET) {
    const auto in = read_as<sockaddr_in>(&from);
    handle.port = ntohs(in.sin_port);
    std::memcpy(handle.address, &in.sin_addr, sizeof in.sin_addr);
  } else {
    const auto in = read_as<sockaddr_in6>(&from);
    handle.port = ntohs(in.sin6_port);
    std::memcpy(handle.address, &in.sin6_addr, sizeof in.sin6_addr);
  }
}

Fd listen_at(const Address& address) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) raise_system("making a socket");
  if (address.storage.ss_family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(fd.get(), address.get(), address.length) != 0) raise_system("binding a socket");
  if (::listen(fd.get(), kBacklog) != 0) raise_system("listening");
  return fd;
}

sockaddr_storage local_address(const Fd& fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    raise_system("asking for a socket's address");
  }
  return storage;
}

Fd accept_from(const Fd& listener) {
  for (;;) {
    Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) return fd;
    if (errno == EMFILE || errno == ENFILE || errno == EBADF || errno == EINVAL) {
      raise_system("accepting a connection");
    }
    // Others concern a connection that is gone again.
  }
}

Fd start_connecting(const Address& address) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) raise_system("making a socket");
  if (connect(fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    raise_system("connecting");
  }
  return fd;
}

int connection_error(const Fd& fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  if (error != 0) return error;
  sockaddr_storage peer;
  length = sizeof peer;
  const int code = getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &length);
  return code == 0 ? 0 : (errno == ENOTCONN ? EINPROGRESS : errno);
}

void set_options(const Fd& fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // Until the welcome only the kernels speak with each other.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleS);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalS);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveCount);
}

void set_unsent(const Fd& fd, size_t bytes) {
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(bytes));
}

bool set_congestion(const Fd& fd, const std::string& name) {
  return setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                    static_cast<socklen_t>(name.size())) == 0;
}

Secret random_secret() {
  Secret secret;
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    raise_system("drawing a random number");
  }
  return secret;
}

LinkCounts link_counts(const Fd& fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return {info.tcpi_data_segs_out, info.tcpi_total_retrans, info.tcpi_min_rtt / 1000.0};
}

int unacknowledged_bytes(const Fd& fd) {
  int bytes = 0;
  return ioctl(fd.get(), SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace bagua_net
