// Lines for NCCL's log (NCCL_DEBUG=INFO shows them).
#pragma once

#include <net.h>

namespace bagua_net {

void set_logger(ncclDebugLogger_t logger);

[[gnu::format(printf, 2, 3)]] void log(ncclDebugLogLevel level, const char* format, ...);

}  // namespace bagua_net
