#include "log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace bagua_net {

namespace {
std::atomic<ncclDebugLogger_t> current{nullptr};
}

void set_logger(ncclDebugLogger_t logger) { current = logger; }

void log(ncclDebugLogLevel level, const char* format, ...) {
  const ncclDebugLogger_t logger = current;
  if (logger == nullptr) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  logger(level, NCCL_INIT | NCCL_NET, "bagua_net", 0, "NET/bagua : %s", line);
}

}  // namespace bagua_net
