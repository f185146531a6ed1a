// What the tables of all versions call. No function throws, blocks for the peer, or aborts.
#pragma once

#include <net.h>

namespace bagua_net::plugin {

inline constexpr const char* kName = "bagua";

// What a device is, in the fields that some version asks for.
struct Properties {
  char* name;
  char* pci_path;
  uint64_t guid;
  int speed_mbit;
};

ncclResult_t init(ncclDebugLogger_t logger);
ncclResult_t init_context(void** context, ncclDebugLogger_t logger);
ncclResult_t finalize(void* context);
ncclResult_t devices(int* num_devices);
ncclResult_t get_properties(int device, Properties* properties);
ncclResult_t listen(int device, void* handle, void** listen_comm);
ncclResult_t connect(int device, void* handle, void** send_comm);
ncclResult_t accept(void* listen_comm, void** receive_comm);
ncclResult_t register_memory(void* comm, void* data, size_t size, int type, void** mhandle);
ncclResult_t deregister_memory(void* comm, void* mhandle);
ncclResult_t isend(void* send_comm, void* data, size_t size, void** request);
ncclResult_t irecv(void* receive_comm, int num, void** data, size_t size, void** request);
ncclResult_t iflush(void* receive_comm, int num, void** data, int* sizes, void** mhandles,
              void** request);
ncclResult_t test(void* request, int* done, int* sizes);
ncclResult_t close_send(void* send_comm);
ncclResult_t close_receive(void* receive_comm);
ncclResult_t close_listen(void* listen_comm);

}  // namespace bagua_net::plugin
