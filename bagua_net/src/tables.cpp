// The five tables that NCCL 2.20 and later, and RCCL, look for; each is the same plugin.
#include "plugin.h"
#include "wire.h"

namespace bagua_net {

namespace {

constexpr size_t kLargestMessageV8 = size_t{1} << 30;

// The fields that all versions have.
template <class Properties>
ncclResult_t properties_v8(int device, Properties* properties) {
  plugin::Properties own;
  const ncclResult_t result = plugin::get_properties(device, &own);
  if (result != ncclSuccess) return result;
  *properties = Properties{};
  properties->name = own.name;
  properties->pciPath = own.pci_path;
  properties->guid = own.guid;
  properties->ptrSupport = NCCL_PTR_HOST;
  properties->speed = own.speed_mbit;
  properties->maxComms = 65'536;
  properties->maxRecvs = 1;
  properties->netDeviceType = NCCL_NET_DEVICE_HOST;
  properties->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
  return ncclSuccess;
}

template <class Properties>
ncclResult_t properties_v9(int device, Properties* properties) {
  const ncclResult_t result = properties_v8(device, properties);
  if (result != ncclSuccess) return result;
  properties->vProps.ndevs = 1;
  properties->vProps.devs[0] = device;
  properties->maxP2pBytes = kLargestMessage;
  properties->maxCollBytes = kLargestMessage;
  return ncclSuccess;
}

template <class Properties>
ncclResult_t properties_v11(int device, Properties* properties) {
  const ncclResult_t result = properties_v9(device, properties);
  if (result == ncclSuccess) properties->maxMultiRequestSize = 1;
  return result;
}

ncclResult_t properties_v12(int device, ncclNetProperties_v12_t* properties) {
  const ncclResult_t result = properties_v11(device, properties);
  if (result != ncclSuccess) return result;
  properties->railId = properties->planeId = NCCL_NET_ID_UNDEF;
  return ncclSuccess;
}

template <class Config>
ncclResult_t init_v11(void** context, uint64_t, Config*, ncclDebugLogger_t logger,
                      ncclProfilerCallback_t) {
  return plugin::init_context(context, logger);
}

ncclResult_t init_v10(ncclDebugLogger_t logger, ncclProfilerCallback_t) {
  return plugin::init(logger);
}

ncclResult_t listen_v11(void*, int device, void* handle, void** listen_comm) {
  return plugin::listen(device, handle, listen_comm);
}

ncclResult_t connect_v8(int device, void* handle, void** send_comm,
                        ncclNetDeviceHandle_t** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return plugin::connect(device, handle, send_comm);
}

ncclResult_t connect_v10(int device, ncclNetCommConfig_v10_t*, void* handle, void** send_comm,
                         ncclNetDeviceHandle_t** device_handle) {
  return connect_v8(device, handle, send_comm, device_handle);
}

ncclResult_t connect_v11(void*, int device, void* handle, void** send_comm,
                         ncclNetDeviceHandle_t** device_handle) {
  return connect_v8(device, handle, send_comm, device_handle);
}

ncclResult_t accept_all(void* listen_comm, void** receive_comm,
                        ncclNetDeviceHandle_t** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return plugin::accept(listen_comm, receive_comm);
}

ncclResult_t isend_v8(void* comm, void* data, int size, int, void*, void** request) {
  *request = nullptr;
  if (size < 0 || static_cast<size_t>(size) > kLargestMessageV8) return ncclInvalidUsage;
  return plugin::isend(comm, data, static_cast<size_t>(size), request);
}

ncclResult_t isend_v9(void* comm, void* data, size_t size, int, void*, void** request) {
  return plugin::isend(comm, data, size, request);
}

ncclResult_t isend_v10(void* comm, void* data, size_t size, int, void*, void*, void** request) {
  return plugin::isend(comm, data, size, request);
}

ncclResult_t irecv_v8(void* comm, int num, void** data, int* sizes, int*, void**, void** request) {
  *request = nullptr;
  if (sizes[0] < 0) return ncclInvalidUsage;
  return plugin::irecv(comm, num, data, static_cast<size_t>(sizes[0]), request);
}

ncclResult_t irecv_v9(void* comm, int num, void** data, size_t* sizes, int*, void**,
                      void** request) {
  return plugin::irecv(comm, num, data, sizes[0], request);
}

ncclResult_t irecv_v10(void* comm, int num, void** data, size_t* sizes, int*, void**, void**,
                 void** request) {
  return plugin::irecv(comm, num, data, sizes[0], request);
}

// Those that no version changes.
template <class Table>
constexpr Table with_common_functions(Table table) {
  table.name = plugin::kName;
  table.devices = plugin::devices;
  table.accept = accept_all;
  table.regMr = plugin::register_memory;
  table.deregMr = plugin::deregister_memory;
  table.iflush = plugin::iflush;
  table.test = plugin::test;
  table.closeSend = plugin::close_send;
  table.closeRecv = plugin::close_receive;
  table.closeListen = plugin::close_listen;
  return table;
}

// Since version 11 every communicator has a context.
template <class Table>
constexpr Table with_context(decltype(Table::getProperties) properties) {
  Table table{};
  table.init = init_v11;
  table.getProperties = properties;
  table.listen = listen_v11;
  table.connect = connect_v11;
  table.isend = isend_v10;
  table.irecv = irecv_v10;
  table.finalize = plugin::finalize;
  return with_common_functions(table);
}

constexpr ncclNet_v10_t table_v10() {
  ncclNet_v10_t table{};
  table.init = init_v10;
  table.getProperties = properties_v9;
  table.listen = plugin::listen;
  table.connect = connect_v10;
  table.isend = isend_v10;
  table.irecv = irecv_v10;
  return with_common_functions(table);
}

constexpr ncclNet_v9_t table_v9() {
  ncclNet_v9_t table{};
  table.init = plugin::init;
  table.getProperties = properties_v9;
  table.listen = plugin::listen;
  table.connect = connect_v8;
  table.isend = isend_v9;
  table.irecv = irecv_v9;
  return with_common_functions(table);
}

constexpr ncclNet_v8_t table_v8() {
  ncclNet_v8_t table{};
  table.init = plugin::init;
  table.getProperties = properties_v8;
  table.listen = plugin::listen;
  table.connect = connect_v8;
  table.isend = isend_v8;
  table.irecv = irecv_v8;
  return with_common_functions(table);
}

// bagua_net/table.py finds the functions by their places.
static_assert(sizeof(ncclNet_v12_t) == 22 * sizeof(void*));
static_assert(sizeof(ncclNet_v11_t) == 22 * sizeof(void*));
static_assert(sizeof(ncclNet_v10_t) == 20 * sizeof(void*));
static_assert(sizeof(ncclNet_v9_t) == 20 * sizeof(void*));
static_assert(sizeof(ncclNet_v8_t) == 19 * sizeof(void*));

}  // namespace

}  // namespace bagua_net

#define BAGUA_NET_EXPORT extern "C" [[gnu::visibility("default")]]

BAGUA_NET_EXPORT const ncclNet_v12_t ncclNetPlugin_v12 =
    bagua_net::with_context<ncclNet_v12_t>(bagua_net::properties_v12);
BAGUA_NET_EXPORT const ncclNet_v11_t ncclNetPlugin_v11 =
    bagua_net::with_context<ncclNet_v11_t>(bagua_net::properties_v11);
BAGUA_NET_EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = bagua_net::table_v10();
BAGUA_NET_EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = bagua_net::table_v9();
BAGUA_NET_EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = bagua_net::table_v8();
