// Non-blocking TCP sockets: what the kernel offers, in the words of this library.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

#include "wire.h"

namespace bagua_net {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();

  int get() const { return fd_; }
  void reset();

 private:
  int fd_ = -1;
};

// A call of the kernel failed; `what()` says which, and why.
[[noreturn]] void raise_system(const char* doing);

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// The address in a handle; its length is 0 where the handle is none of ours.
Address address_of(const Handle& handle);
// Writes family, address and port.
void write_address(const sockaddr_storage& from, Handle& handle);

Fd listen_at(const Address& address);
sockaddr_storage local_address(const Fd& fd);
// The next connection, or none (-1) where none waits now.
Fd accept_from(const Fd& listener);
Fd start_connecting(const Address& address);
// 0: connected; EINPROGRESS: not yet; else why it failed.
int connection_error(const Fd& fd);

// Small messages at once; dead peers noticed.
void set_options(const Fd& fd);
// Bounds what waits unsent in the kernel, so that a slow stream takes little ahead.
void set_unsent(const Fd& fd, size_t bytes);
bool set_congestion(const Fd& fd, const std::string& name);

Secret random_secret();

// What TCP has counted on one stream.
struct LinkCounts {
  uint64_t segments = 0;
  uint64_t retransmitted = 0;
  double round_trip_ms = 0;
};
LinkCounts link_counts(const Fd& fd);
// Bytes that the peer's kernel has not acknowledged yet.
int unacknowledged_bytes(const Fd& fd);

}  // namespace bagua_net
