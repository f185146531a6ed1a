// Which interfaces of this host are devices: NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY decide.
#pragma once

#include <string>
#include <vector>

#include "sockets.h"

namespace bagua_net {

struct Interface {
  std::string name;
  Address address;
  std::string pci_path;  // empty: a virtual one
  int index = 0;
  int speed_mbit = 0;

  bool operator==(const Interface& other) const {
    return name == other.name && index == other.index && address.length == other.address.length &&
           std::memcmp(&address.storage, &other.address.storage, address.length) == 0;
  }
};

// All that match, each with one address. Throws std::invalid_argument for a wrong variable.
std::vector<Interface> find_interfaces();

// Whether `name` is what NCCL_SOCKET_IFNAME asks for: "eth,ib" prefixes, "^docker" all others,
// "=eth0" the exact name.
bool matches(const std::string& pattern, const std::string& name);

}  // namespace bagua_net
