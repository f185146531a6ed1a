#include "interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace bagua_net {

namespace {

constexpr int kUnknownSpeedMbit = 10'000;  // as NCCL assumes for its own sockets

int wanted_family() {
  const char* text = std::getenv("NCCL_SOCKET_FAMILY");
  if (text == nullptr || *text == '\0') return AF_UNSPEC;
  const std::string word = text;
  if (word == "AF_INET") return AF_INET;
  if (word == "AF_INET6") return AF_INET6;
  throw std::invalid_argument("NCCL_SOCKET_FAMILY must be AF_INET or AF_INET6, not '" + word +
                              "'.");
}

bool is_usable(const ifaddrs& entry, int family) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  const int own = entry.ifa_addr->sa_family;
  if (own != AF_INET && own != AF_INET6) return false;
  if (family != AF_UNSPEC && own != family) return false;
  // The scope of a link-local address means nothing to the peer.
  return own != AF_INET6 ||
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

std::string first_line(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// sysfs may belong to another network namespace, whose interface of the same name is another one.
void read_sysfs(Interface& interface) {
  const std::string folder = "/sys/class/net/" + interface.name;
  interface.speed_mbit = kUnknownSpeedMbit;
  if (first_line(folder + "/ifindex") != std::to_string(interface.index)) return;
  const int speed = std::atoi(first_line(folder + "/speed").c_str());
  if (speed > 0) interface.speed_mbit = speed;
  const std::unique_ptr<char, void (*)(void*)> path(
      realpath((folder + "/device").c_str(), nullptr), std::free);
  if (path) interface.pci_path = path.get();
}

Interface describe(const ifaddrs& entry) {
  Interface interface;
  interface.name = entry.ifa_name;
  interface.address.length =
      entry.ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&interface.address.storage, entry.ifa_addr, interface.address.length);
  interface.index = static_cast<int>(if_nametoindex(entry.ifa_name));
  read_sysfs(interface);
  return interface;
}

// One address an interface, the first that getifaddrs names.
std::vector<Interface> all_interfaces(int family) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) raise_system("listing the interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const bool is_known = std::any_of(found.begin(), found.end(), [&](const Interface& known) {
      return known.name == entry->ifa_name;
    });
    if (!is_known && is_usable(*entry, family)) found.push_back(describe(*entry));
  }
  return found;
}

template <class Predicate>
std::vector<Interface> only(const std::vector<Interface>& all, Predicate keeps) {
  std::vector<Interface> kept;
  std::copy_if(all.begin(), all.end(), std::back_inserter(kept),
               [&](const Interface& interface) { return keeps(interface.name); });
  return kept;
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  const bool excludes = pattern[0] == '^';
  const bool is_exact = pattern[excludes ? 1 : 0] == '=';
  std::stringstream words(pattern.substr((excludes ? 1 : 0) + (is_exact ? 1 : 0)));
  bool is_named = false;
  for (std::string word; std::getline(words, word, ',');) {
    is_named |= is_exact ? name == word : !word.empty() && name.rfind(word, 0) == 0;
  }
  return is_named != excludes;
}

std::vector<Interface> find_interfaces() {
  const auto all = all_interfaces(wanted_family());
  const char* pattern = std::getenv("NCCL_SOCKET_IFNAME");
  if (pattern != nullptr && *pattern != '\0') {
    return only(all, [&](const std::string& name) { return matches(pattern, name); });
  }
  // As NCCL's own sockets: real networks, else those of containers, else loopback.
  for (const char* fallback : {"^lo,docker", "docker", "lo"}) {
    auto chosen = only(all, [&](const std::string& name) { return matches(fallback, name); });
    if (!chosen.empty()) return chosen;
  }
  return {};
}

}  // namespace bagua_net
