// The five tables that NCCL 2.20 and later, and RCCL, look for; each is the same plugin.
#include "plugin.h"

namespace bagua_net {

namespace {

constexpr size_t kLargestMessageV8 = size_t{1} << 30;

// The fields that all versions have.
template <class Properties>
Result common_properties(int device, Properties* properties) {
  plugin::Properties own;
  const Result result = plugin::get_properties(device, &own);
  if (result != kSuccess) return result;
  *properties = Properties{};
  properties->name = own.name;
  properties->pci_path = own.pci_path;
  properties->guid = own.guid;
  properties->pointer_support = kHostMemory;
  properties->speed_mbit = own.speed_mbit;
  properties->most_comms = 65'536;
  properties->most_receives = 1;
  return kSuccess;
}

template <class Properties>
Result properties_v9(int device, Properties* properties) {
  const Result result = common_properties(device, properties);
  if (result != kSuccess) return result;
  properties->virtual_device.num_devices = 1;
  properties->virtual_device.devices[0] = device;
  properties->largest_p2p = kLargestMessage;
  properties->largest_collective = kLargestMessage;
  return kSuccess;
}

template <class Properties>
Result properties_v11(int device, Properties* properties) {
  const Result result = properties_v9(device, properties);
  if (result == kSuccess) properties->largest_multi_request = 1;
  return result;
}

Result properties_v12(int device, PropertiesV12* properties) {
  const Result result = properties_v11(device, properties);
  if (result != kSuccess) return result;
  properties->rail_id = properties->plane_id = kUndefinedId;
  return kSuccess;
}

Result init_v11(void** context, uint64_t, CommConfig*, Logger logger, Profiler) {
  return plugin::init_context(context, logger);
}

Result init_v10(Logger logger, Profiler) { return plugin::init(logger); }

Result listen_v11(void*, int device, void* handle, void** listen_comm) {
  return plugin::listen(device, handle, listen_comm);
}

Result connect_v8(int device, void* handle, void** send_comm, DeviceHandle** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return plugin::connect(device, handle, send_comm);
}

Result connect_v10(int device, CommConfig*, void* handle, void** send_comm,
                   DeviceHandle** device_handle) {
  return connect_v8(device, handle, send_comm, device_handle);
}

Result connect_v11(void*, int device, void* handle, void** send_comm,
                   DeviceHandle** device_handle) {
  return connect_v8(device, handle, send_comm, device_handle);
}

Result accept_all(void* listen_comm, void** receive_comm, DeviceHandle** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return plugin::accept(listen_comm, receive_comm);
}

Result isend_v8(void* comm, void* data, int size, int, void*, void** request) {
  *request = nullptr;
  if (size < 0 || static_cast<size_t>(size) > kLargestMessageV8) return kInvalidUsage;
  return plugin::isend(comm, data, static_cast<size_t>(size), request);
}

Result isend_v9(void* comm, void* data, size_t size, int, void*, void** request) {
  return plugin::isend(comm, data, size, request);
}

Result isend_v10(void* comm, void* data, size_t size, int, void*, void*, void** request) {
  return plugin::isend(comm, data, size, request);
}

Result irecv_v8(void* comm, int num, void** data, int* sizes, int*, void**, void** request) {
  *request = nullptr;
  if (sizes[0] < 0) return kInvalidUsage;
  return plugin::irecv(comm, num, data, static_cast<size_t>(sizes[0]), request);
}

Result irecv_v9(void* comm, int num, void** data, size_t* sizes, int*, void**, void** request) {
  return plugin::irecv(comm, num, data, sizes[0], request);
}

Result irecv_v10(void* comm, int num, void** data, size_t* sizes, int*, void**, void**,
                 void** request) {
  return plugin::irecv(comm, num, data, sizes[0], request);
}

// Those that no version changes.
template <class Table>
constexpr Table with_common_functions(Table table) {
  table.name = plugin::kName;
  table.devices = plugin::devices;
  table.accept = accept_all;
  table.register_memory = plugin::register_memory;
  table.deregister_memory = plugin::deregister_memory;
  table.iflush = plugin::iflush;
  table.test = plugin::test;
  table.close_send = plugin::close_send;
  table.close_receive = plugin::close_receive;
  table.close_listen = plugin::close_listen;
  return table;
}

template <class Table, class Properties>
constexpr Table with_context(Result (*get_properties)(int, Properties*)) {
  Table table{};
  table.init = init_v11;
  table.get_properties = get_properties;
  table.listen = listen_v11;
  table.connect = connect_v11;
  table.isend = isend_v10;
  table.irecv = irecv_v10;
  table.finalize = plugin::finalize;
  return with_common_functions(table);
}

constexpr TableV10 table_v10() {
  TableV10 table{};
  table.init = init_v10;
  table.get_properties = properties_v9;
  table.listen = plugin::listen;
  table.connect = connect_v10;
  table.isend = isend_v10;
  table.irecv = irecv_v10;
  return with_common_functions(table);
}

constexpr TableV9 table_v9() {
  TableV9 table{};
  table.init = plugin::init;
  table.get_properties = properties_v9;
  table.listen = plugin::listen;
  table.connect = connect_v8;
  table.isend = isend_v9;
  table.irecv = irecv_v9;
  return with_common_functions(table);
}

constexpr TableV8 table_v8() {
  TableV8 table{};
  table.init = plugin::init;
  table.get_properties = common_properties;
  table.listen = plugin::listen;
  table.connect = connect_v8;
  table.isend = isend_v8;
  table.irecv = irecv_v8;
  return with_common_functions(table);
}

}  // namespace

}  // namespace bagua_net

#define BAGUA_NET_EXPORT extern "C" [[gnu::visibility("default")]]

BAGUA_NET_EXPORT const bagua_net::TableV12 ncclNetPlugin_v12 =
    bagua_net::with_context<bagua_net::TableV12>(bagua_net::properties_v12);
BAGUA_NET_EXPORT const bagua_net::TableV11 ncclNetPlugin_v11 =
    bagua_net::with_context<bagua_net::TableV11>(
        bagua_net::properties_v11<bagua_net::PropertiesV11>);
BAGUA_NET_EXPORT const bagua_net::TableV10 ncclNetPlugin_v10 = bagua_net::table_v10();
BAGUA_NET_EXPORT const bagua_net::TableV9 ncclNetPlugin_v9 = bagua_net::table_v9();
BAGUA_NET_EXPORT const bagua_net::TableV8 ncclNetPlugin_v8 = bagua_net::table_v8();
