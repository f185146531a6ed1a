// What the tables of all versions call. No function throws, blocks for the peer, or aborts.
#pragma once

#include "abi.h"

namespace bagua_net::plugin {

inline constexpr const char* kName = "bagua";

// What a device is, in the fields that some version asks for.
struct Properties {
  char* name;
  char* pci_path;
  uint64_t guid;
  int speed_mbit;
};

Result init(Logger logger);
Result init_context(void** context, Logger logger);
Result finalize(void* context);
Result devices(int* num_devices);
Result get_properties(int device, Properties* properties);
Result listen(int device, void* handle, void** listen_comm);
Result connect(int device, void* handle, void** send_comm);
Result accept(void* listen_comm, void** receive_comm);
Result register_memory(void* comm, void* data, size_t size, int type, void** mhandle);
Result deregister_memory(void* comm, void* mhandle);
Result isend(void* send_comm, void* data, size_t size, void** request);
Result irecv(void* receive_comm, int num, void** data, size_t size, void** request);
Result iflush(void* receive_comm, int num, void** data, int* sizes, void** mhandles,
              void** request);
Result test(void* request, int* done, int* sizes);
Result close_send(void* send_comm);
Result close_receive(void* receive_comm);
Result close_listen(void* listen_comm);

}  // namespace bagua_net::plugin
