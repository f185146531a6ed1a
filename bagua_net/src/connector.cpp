#include "connector.h"

#include <algorithm>
#include <cerrno>

namespace bagua_net {

namespace {

constexpr std::chrono::seconds kConnectLimit{60};  // over five lost SYNs

}  // namespace

Connector::Connector(const Settings& settings, const Handle& handle)
    : settings_(settings),
      handle_(handle),
      connection_(random_secret()),
      since_(Clock::now()),
      has_said_hello_(static_cast<size_t>(settings.streams.value_or(kAutoStreams))) {
  const Address address = address_of(handle);
  for (size_t i = 0; i < has_said_hello_.size(); ++i) {
    fds_.push_back(start_connecting(address));
    set_options(fds_.back());
    const auto& congestion = settings.congestion;
    if (congestion && *congestion != "system" && !set_congestion(fds_.back(), *congestion)) {
      raise_system("setting the congestion control of BAGUA_NET_CONGESTION");
    }
  }
}

bool Connector::is_late() const { return Clock::now() - since_ > kConnectLimit; }

std::unique_ptr<SendConnection> Connector::step() {
  bool is_ready = true;
  for (size_t i = 0; i < fds_.size(); ++i) is_ready = step(i) && is_ready;
  if (is_ready) {
    return std::make_unique<SendConnection>(settings_, std::move(fds_), handle_.answer);
  }
  if (is_late()) throw std::system_error(ETIMEDOUT, std::generic_category(), "connecting");
  return nullptr;
}

bool Connector::step(size_t index) {
  if (has_said_hello_[index]) return true;
  const int error = connection_error(fds_[index]);
  if (error == EINPROGRESS) return false;
  if (error != 0) throw std::system_error(error, std::generic_category(), "connecting");
  const Hello hello{kHelloMagic, static_cast<uint16_t>(index), static_cast<uint16_t>(fds_.size()),
                    handle_.secret, connection_, settings_.timeout_ms()};
  // An empty socket takes so few bytes whole.
  const ssize_t sent = send(fds_[index].get(), &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(sizeof hello)) raise_system("greeting the listener");
  has_said_hello_[index] = true;
  return true;
}

}  // namespace bagua_net
