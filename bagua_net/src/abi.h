// NCCL's binary interface for net plugins, versions 8 to 12, in declarations of our own: names are
// ours, the order and types of fields and functions are NCCL's. RCCL has the same interface.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bagua_net {

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

enum LogLevel : int { kWarn = 2, kInfo = 3 };

inline constexpr unsigned long kLogInit = 1;
inline constexpr unsigned long kLogNet = 16;
inline constexpr int kHostMemory = 1;
inline constexpr size_t kHandleBytes = 128;
inline constexpr int kMostRequests = 32;
inline constexpr size_t kLargestMessage = size_t{1} << 40;
inline constexpr int kUndefinedId = -1;

using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);
using Profiler = Result (*)(void** event, int type, void* phandle, int64_t plugin, void* data);

struct DeviceHandle;  // of offloading plugins; this one gives none

struct CommConfig {
  int traffic_class;
};

template <int kMostDevices>
struct VirtualDevice {
  int num_devices;
  int devices[kMostDevices];
};

struct PropertiesV8 {
  char* name;
  char* pci_path;  // null: a virtual interface
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int speed_mbit;
  int port;
  float latency_us;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
};

struct PropertiesV9 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbit;
  int port;
  float latency_us;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  size_t largest_p2p;
  size_t largest_collective;
};

struct PropertiesV11 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbit;
  int port;
  float latency_us;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  size_t largest_p2p;
  size_t largest_collective;
  int largest_multi_request;
};

struct PropertiesV12 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbit;
  int port;
  float latency_us;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<8> virtual_device;
  size_t largest_p2p;
  size_t largest_collective;
  int largest_multi_request;
  int16_t rail_id;
  int16_t plane_id;
};

// Since version 11 every communicator has a context.
template <class Properties, int kMostDevices>
struct TableWithContext {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, CommConfig* config, Logger, Profiler);
  Result (*devices)(int* num_devices);
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm, DeviceHandle**);
  Result (*accept)(void* listen_comm, void** receive_comm, DeviceHandle**);
  Result (*register_memory)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*register_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                             void** mhandle);
  Result (*deregister_memory)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                  void** request);
  Result (*irecv)(void* receive_comm, int num, void** data, size_t* sizes, int* tags,
                  void** mhandles, void** phandles, void** request);
  Result (*iflush)(void* receive_comm, int num, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_receive)(void* receive_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_memory)(void* comm, void* mhandle, void** device_mhandle);
  Result (*receive_consumed)(void* receive_comm, int num, void* request);
  Result (*make_virtual_device)(int* device, VirtualDevice<kMostDevices>*);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, void* attributes);
};

using TableV12 = TableWithContext<PropertiesV12, 8>;
using TableV11 = TableWithContext<PropertiesV11, 4>;

struct TableV10 {
  const char* name;
  Result (*init)(Logger, Profiler);
  Result (*devices)(int* num_devices);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, CommConfig*, void* handle, void** send_comm, DeviceHandle**);
  Result (*accept)(void* listen_comm, void** receive_comm, DeviceHandle**);
  Result (*register_memory)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*register_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                             void** mhandle);
  Result (*deregister_memory)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                  void** request);
  Result (*irecv)(void* receive_comm, int num, void** data, size_t* sizes, int* tags,
                  void** mhandles, void** phandles, void** request);
  Result (*iflush)(void* receive_comm, int num, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_receive)(void* receive_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_memory)(void* comm, void* mhandle, void** device_mhandle);
  Result (*receive_consumed)(void* receive_comm, int num, void* request);
  Result (*make_virtual_device)(int* device, VirtualDevice<4>*);
};

struct TableV9 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* num_devices);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle**);
  Result (*accept)(void* listen_comm, void** receive_comm, DeviceHandle**);
  Result (*register_memory)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*register_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                             void** mhandle);
  Result (*deregister_memory)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* receive_comm, int num, void** data, size_t* sizes, int* tags,
                  void** mhandles, void** request);
  Result (*iflush)(void* receive_comm, int num, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_receive)(void* receive_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_memory)(void* comm, void* mhandle, void** device_mhandle);
  Result (*receive_consumed)(void* receive_comm, int num, void* request);
  Result (*make_virtual_device)(int* device, VirtualDevice<4>*);
};

struct TableV8 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* num_devices);
  Result (*get_properties)(int device, PropertiesV8*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle**);
  Result (*accept)(void* listen_comm, void** receive_comm, DeviceHandle**);
  Result (*register_memory)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*register_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                             void** mhandle);
  Result (*deregister_memory)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* receive_comm, int num, void** data, int* sizes, int* tags, void** mhandles,
                  void** request);
  Result (*iflush)(void* receive_comm, int num, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_receive)(void* receive_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_memory)(void* comm, void* mhandle, void** device_mhandle);
  Result (*receive_consumed)(void* receive_comm, int num, void* request);
};

// A 64-bit Linux is assumed by what follows, as by NCCL.
static_assert(sizeof(PropertiesV8) == 64);
static_assert(sizeof(PropertiesV9) == 104);
static_assert(sizeof(PropertiesV11) == 112);
static_assert(sizeof(PropertiesV12) == 128);
static_assert(sizeof(TableV12) == 22 * sizeof(void*) && sizeof(TableV11) == sizeof(TableV12));
static_assert(sizeof(TableV10) == 20 * sizeof(void*) && sizeof(TableV9) == sizeof(TableV10));
static_assert(sizeof(TableV8) == 19 * sizeof(void*));

}  // namespace bagua_net
