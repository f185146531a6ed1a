#include "log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace bagua_net {

namespace {
std::atomic<Logger> current{nullptr};
}

void set_logger(Logger logger) { current = logger; }

void log(LogLevel level, const char* format, ...) {
  const Logger logger = current;
  if (logger == nullptr) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  logger(level, kLogInit | kLogNet, "bagua_net", 0, "NET/bagua : %s", line);
}

}  // namespace bagua_net
