#include "settings.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "wire.h"

namespace bagua_net {

namespace {

const char* text_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

double number(const char* name, double least, double most, double otherwise) {
  const char* text = text_of(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != '\0' || !(value >= least && value <= most)) {
    std::ostringstream sentence;
    sentence.precision(10);
    sentence << name << " must be " << least << " to " << most << ", not '" << text << "'.";
    throw std::invalid_argument(sentence.str());
  }
  return value;
}

int whole(const char* name, int least, int most, int otherwise) {
  const double value = number(name, least, most, otherwise);
  if (value != std::floor(value)) {
    throw std::invalid_argument(std::string(name) + " must be a whole number.");
  }
  return static_cast<int>(value);
}

std::optional<size_t> kilobytes(const char* name) {
  if (text_of(name) == nullptr) return std::nullopt;
  return size_t(whole(name, 1, 1 << 20, 1)) << 10;
}

int default_threads() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 4, 1, 4);
}

}  // namespace

Settings read_settings() {
  Settings settings;
  if (text_of("BAGUA_NET_STREAMS")) {
    settings.streams = whole("BAGUA_NET_STREAMS", 1, kMostStreams, 1);
  }
  if (const char* name = text_of("BAGUA_NET_CONGESTION")) settings.congestion = name;
  if (const char* split = text_of("BAGUA_NET_SPLIT")) {
    const std::string word = split;
    if (word != "static" && word != "dynamic") {
      throw std::invalid_argument("BAGUA_NET_SPLIT must be dynamic or static, not '" + word + "'.");
    }
    settings.is_static = word == "static";
  }
  settings.chunk_bytes = kilobytes("BAGUA_NET_CHUNK_KB");
  settings.unsent_bytes = kilobytes("BAGUA_NET_UNSENT_KB");
  const double timeout_s =
      number("BAGUA_NET_TIMEOUT_S", kLeastTimeoutMs / 1e3, kMostTimeoutMs / 1e3, 30);
  settings.timeout = std::chrono::milliseconds(std::lround(1000 * timeout_s));
  settings.threads = whole("BAGUA_NET_THREADS", 1, 64, default_threads());
  return settings;
}

}  // namespace bagua_net
