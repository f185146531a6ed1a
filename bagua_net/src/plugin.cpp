#include "plugin.h"

#include <list>
#include <map>
#include <stdexcept>

#include "connector.h"
#include "listener.h"
#include "log.h"

namespace bagua_net::plugin {

namespace {

// What the process has; never destroyed, since a process may exit at any moment.
struct State {
  std::mutex mutex;
  int num_contexts = 0;
  // The last list counts; names in earlier ones are still known to NCCL.
  std::list<std::vector<Interface>> interfaces{{}};
  // Between two calls of `connect` the handle holds a key, and not a pointer: it came from afar.
  std::map<uint64_t, std::shared_ptr<Connector>> attempts;
};

State& state() {
  static auto* only = new State;
  return *only;
}

// Runs `body`, whose exceptions become results.
template <class Body>
ncclResult_t guarded(const char* doing, ncclResult_t of_system_errors, Body body) {
  try {
    return body();
  } catch (const std::invalid_argument& error) {
    log(NCCL_LOG_WARN, "%s", error.what());
    return ncclInvalidUsage;
  } catch (const std::system_error& error) {
    log(NCCL_LOG_WARN, "%s: %s", doing, error.what());
    return of_system_errors;
  } catch (const std::exception& error) {
    log(NCCL_LOG_WARN, "%s: %s", doing, error.what());
    return ncclInternalError;
  }
}

void forget_late_attempts() {
  auto& attempts = state().attempts;
  for (auto it = attempts.begin(); it != attempts.end();) {
    it = it->second->is_late() ? attempts.erase(it) : std::next(it);
  }
}

uint64_t new_key() {
  const Secret secret = random_secret();
  const auto key = read_as<uint64_t>(secret.data());
  return key == 0 ? 1 : key;
}

// The attempt that the handle stands for: begun by the first call, found again by the others.
std::shared_ptr<Connector> attempt_of(Handle& handle, void* memory) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().attempts.find(handle.attempt);
  if (found != state().attempts.end()) return found->second;
  if (handle.attempt != 0) throw std::invalid_argument("This handle's attempt to connect is over.");
  if (address_of(handle).length == 0) {
    throw std::invalid_argument("This is no handle of this version of bagua_net.");
  }
  forget_late_attempts();
  auto attempt = std::make_shared<Connector>(read_settings(), handle);
  handle.attempt = new_key();
  std::memcpy(memory, &handle, sizeof handle);
  state().attempts[handle.attempt] = attempt;
  return attempt;
}

// Throws std::invalid_argument where the kernel cannot do what is asked for.
void check(const Settings& settings) {
  const auto& name = settings.congestion;
  if (!name || *name == "system") return;
  const Fd scratch(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (scratch.get() < 0) raise_system("making a socket");
  if (!set_congestion(scratch, *name)) {
    throw std::invalid_argument("BAGUA_NET_CONGESTION=" + *name +
                                ": the kernel does not offer it to this user; see "
                                "net.ipv4.tcp_allowed_congestion_control.");
  }
}

void forget(uint64_t key) {
  const std::lock_guard lock(state().mutex);
  state().attempts.erase(key);
}

}  // namespace

ncclResult_t init(ncclDebugLogger_t logger) {
  set_logger(logger);
  return guarded("init", ncclSystemError, [] {
    check(read_settings());  // a wrong one is refused here, before anything depends on it
    const std::lock_guard lock(state().mutex);
    auto found = find_interfaces();
    if (found != state().interfaces.back()) state().interfaces.push_back(std::move(found));
    for (const auto& each : state().interfaces.back()) {
      log(NCCL_LOG_INFO, "device %s", each.name.c_str());
    }
    return ncclSuccess;
  });
}

ncclResult_t init_context(void** context, ncclDebugLogger_t logger) {
  const ncclResult_t result = init(logger);
  if (result != ncclSuccess) return result;
  const std::lock_guard lock(state().mutex);
  ++state().num_contexts;
  *context = &state();
  return ncclSuccess;
}

ncclResult_t finalize(void*) {
  const std::lock_guard lock(state().mutex);
  if (--state().num_contexts <= 0) state().attempts.clear();
  return ncclSuccess;
}

ncclResult_t devices(int* num_devices) {
  const std::lock_guard lock(state().mutex);
  *num_devices = static_cast<int>(state().interfaces.back().size());
  return ncclSuccess;
}

ncclResult_t get_properties(int device, Properties* properties) {
  const std::lock_guard lock(state().mutex);
  auto& interfaces = state().interfaces.back();
  if (device < 0 || static_cast<size_t>(device) >= interfaces.size()) return ncclInvalidUsage;
  Interface& chosen = interfaces[static_cast<size_t>(device)];
  properties->name = chosen.name.data();
  properties->pci_path = chosen.pci_path.empty() ? nullptr : chosen.pci_path.data();
  properties->guid = static_cast<uint64_t>(chosen.index);
  properties->speed_mbit = chosen.speed_mbit;
  return ncclSuccess;
}

ncclResult_t listen(int device, void* handle, void** listen_comm) {
  *listen_comm = nullptr;
  return guarded("listen", ncclSystemError, [&] {
    Address address;
    {
      const std::lock_guard lock(state().mutex);
      const auto& interfaces = state().interfaces.back();
      if (device < 0 || static_cast<size_t>(device) >= interfaces.size()) {
        throw std::invalid_argument("There is no such device.");
      }
      address = interfaces[static_cast<size_t>(device)].address;
    }
    Handle written;
    auto listener = std::make_unique<Listener>(read_settings(), address, written);
    std::memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
    std::memcpy(handle, &written, sizeof written);
    *listen_comm = listener.release();
    return ncclSuccess;
  });
}

ncclResult_t connect(int, void* memory, void** send_comm) {
  *send_comm = nullptr;
  auto handle = read_as<Handle>(memory);
  const ncclResult_t result = guarded("connect", ncclRemoteError, [&] {
    auto connection = attempt_of(handle, memory)->step();
    if (connection == nullptr) return ncclSuccess;
    *send_comm = static_cast<Connection*>(connection.release());
    return ncclSuccess;
  });
  if (result != ncclSuccess || *send_comm != nullptr) forget(handle.attempt);
  return result;
}

ncclResult_t accept(void* listen_comm, void** receive_comm) {
  *receive_comm = nullptr;
  return guarded("accept", ncclSystemError, [&] {
    *receive_comm = static_cast<Connection*>(
        static_cast<Listener*>(listen_comm)->accept().release());
    return ncclSuccess;
  });
}

ncclResult_t register_memory(void* comm, void*, size_t, int type, void** mhandle) {
  *mhandle = comm;  // there is nothing to register
  return type == NCCL_PTR_HOST ? ncclSuccess : ncclInternalError;
}

ncclResult_t deregister_memory(void*, void*) { return ncclSuccess; }

ncclResult_t isend(void* send_comm, void* data, size_t size, void** request) {
  Request* made = nullptr;
  auto* connection = static_cast<SendConnection*>(static_cast<Connection*>(send_comm));
  const ncclResult_t result =
      guarded("isend", ncclSystemError, [&] { return connection->isend(data, size, &made); });
  *request = made;
  return result;
}

ncclResult_t irecv(void* receive_comm, int num, void** data, size_t size, void** request) {
  *request = nullptr;  // it may come in as a hint, which is no request
  if (num != 1) return ncclInternalError;
  Request* made = nullptr;
  auto* connection = static_cast<ReceiveConnection*>(static_cast<Connection*>(receive_comm));
  const ncclResult_t result =
      guarded("irecv", ncclSystemError, [&] { return connection->irecv(data[0], size, &made); });
  *request = made;
  return result;
}

// Host memory needs no flush, and there is no other.
ncclResult_t iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return ncclInternalError;
}

ncclResult_t test(void* request, int* done, int* sizes) {
  auto* tested = static_cast<Request*>(request);
  return tested->connection->test(tested, done, sizes);
}

ncclResult_t close_send(void* send_comm) {
  return guarded("closeSend", ncclSystemError, [&] {
    delete static_cast<Connection*>(send_comm);
    return ncclSuccess;
  });
}

ncclResult_t close_receive(void* receive_comm) {
  return guarded("closeRecv", ncclSystemError, [&] {
    delete static_cast<Connection*>(receive_comm);
    return ncclSuccess;
  });
}

ncclResult_t close_listen(void* listen_comm) {
  return guarded("closeListen", ncclSystemError, [&] {
    delete static_cast<Listener*>(listen_comm);
    return ncclSuccess;
  });
}

}  // namespace bagua_net::plugin
