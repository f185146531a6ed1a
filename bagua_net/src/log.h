// Lines for NCCL's log (NCCL_DEBUG=INFO shows them).
#pragma once

#include "abi.h"

namespace bagua_net {

void set_logger(Logger logger);

[[gnu::format(printf, 2, 3)]] void log(LogLevel level, const char* format, ...);

}  // namespace bagua_net
