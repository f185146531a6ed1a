// Broken handshakes and headers by the hundred thousand: `fuzz CASES [SEED]`. Every case changes
// valid bytes somewhere. The checks of wire.h are called for all of them; every 64th goes through
// a real listener, and every 64th through a real connection, over sockets of this process.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "listener.h"

using namespace bagua_net;

namespace {

constexpr uint64_t kWhole = 64;
constexpr uint64_t kSize = 512;  // of the memory posted

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t limit) { return random_() % limit; }

  // One to four fields of eight, four, two or one bytes get odd values.
  template <class T>
  T spoilt(T value) {
    for (uint64_t left = 1 + below(4); left > 0; --left) {
      const uint64_t odd[] = {0, 1, kSize, kSize + 1, ~uint64_t{0}, uint64_t{1} << 63, random_()};
      const uint64_t chosen = odd[below(7)];
      const size_t width = size_t{1} << below(4);
      const size_t offset = below(sizeof(T) / width) * width;
      std::memcpy(reinterpret_cast<char*>(&value) + offset, &chosen, width);
    }
    return value;
  }

 private:
  std::mt19937_64 random_;
};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::exit(1);
}

void check_header(const ChunkHeader& header) {
  if (!is_sound(header) || header.kind == kPing) return;
  require(header.offset + header.length >= header.offset, "a sum overflowed");
  require(header.offset + header.length <= header.total, "a chunk leaves its message");
  require(header.total <= kLargestMessage, "a message is too large");
}

// Against a flag for each byte.
void check_claims(Fuzzer& fuzzer) {
  Claims claims;
  std::array<bool, kSize> taken{};
  for (uint64_t left = fuzzer.below(64); left > 0; --left) {
    const uint64_t begin = fuzzer.below(kSize);
    const uint64_t end = begin + 1 + fuzzer.below(std::min<uint64_t>(kSize - begin, 32));
    const auto first = taken.begin() + begin, last = taken.begin() + end;
    const bool is_free = std::none_of(first, last, [](bool byte) { return byte; });
    require(claims.take(begin, end) == is_free, "a byte was taken twice, or refused though free");
    if (is_free) std::fill(first, last, true);
  }
}

std::pair<Fd, Fd> socket_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) raise_system("socketpair");
  return {Fd(fds[0]), Fd(fds[1])};
}

Address loopback() {
  Handle handle{};
  handle.magic = kHandleMagic;
  handle.family = AF_INET;
  const uint8_t bytes[4] = {127, 0, 0, 1};
  std::memcpy(handle.address, bytes, sizeof bytes);
  return address_of(handle);
}

// A listener drops what is none of its own, and still takes what is.
class ListenerFuzz {
 public:
  ListenerFuzz() : listener_({}, loopback(), handle_) {}

  void feed(Fuzzer& fuzzer) {
    Hello hello{kHelloMagic, 0, 1, handle_.secret, random_secret(), kLeastTimeoutMs};
    hello = fuzzer.spoilt(hello);
    if (is_hello(hello, handle_.secret)) return;  // nothing that matters was changed
    Fd fd = start_connecting(address_of(handle_));
    const size_t length = fuzzer.below(4) == 0 ? fuzzer.below(sizeof hello) : sizeof hello;
    (void)send(fd.get(), &hello, length, MSG_NOSIGNAL);
    require(listener_.accept() == nullptr, "a broken hello was taken");
  }

  void still_listens() {
    Fd fd = start_connecting(address_of(handle_));
    const Hello hello{kHelloMagic, 0, 1, handle_.secret, random_secret(), kLeastTimeoutMs};
    require(send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello, "no hello");
    for (int tries = 0; tries < 10'000; ++tries) {
      if (listener_.accept() != nullptr) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    require(false, "a good hello was not taken any more");
  }

 private:
  Handle handle_{};
  Listener listener_;
};

// Whatever a stream brings, nothing beside the posted memory is written (the sanitizer sees), and
// the request ends.
void feed_connection(Fuzzer& fuzzer) {
  auto [theirs, ours] = socket_pair();
  std::vector<Fd> fds;
  fds.push_back(std::move(ours));
  ReceiveConnection connection({}, std::move(fds), {}, std::chrono::milliseconds(kLeastTimeoutMs));
  const std::unique_ptr<char[]> memory(new char[kSize]);
  Request* request = nullptr;
  require(connection.irecv(memory.get(), kSize, &request) == ncclSuccess, "irecv failed");
  for (uint64_t left = 1 + fuzzer.below(3); left > 0; --left) {
    const uint64_t offset = fuzzer.below(kSize), length = 1 + fuzzer.below(kSize - offset);
    ChunkHeader header{kChunkMagic, kData, 0, kSize, offset, length};
    if (fuzzer.below(4) != 0) header = fuzzer.spoilt(header);
    char bytes[sizeof header + kSize]{};
    std::memcpy(bytes, &header, sizeof header);
    (void)send(theirs.get(), bytes, sizeof header + fuzzer.below(kSize), MSG_NOSIGNAL);
  }
  theirs.reset();
  int done = 0;
  const auto until = Clock::now() + std::chrono::seconds(20);
  while (connection.test(request, &done, nullptr) == ncclSuccess && done == 0) {
    require(Clock::now() < until, "a request neither ended nor failed");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000;
  Fuzzer fuzzer(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  const auto pool = ReactorPool::get(1);
  ListenerFuzz listener;
  const Secret secret = random_secret();
  for (uint64_t i = 0; i < cases; ++i) {
    check_header(fuzzer.spoilt(ChunkHeader{kChunkMagic, kData, 0, kSize, 0, kSize}));
    const Hello hello = fuzzer.spoilt(Hello{kHelloMagic, 0, 4, secret, secret, kMostTimeoutMs});
    if (is_hello(hello, secret)) {
      require(hello.index < hello.num_streams, "an index too large");
      require(is_timeout(hello.timeout_ms), "a timeout out of range");
    }
    if (i % kWhole == 1) check_claims(fuzzer);
    if (i % kWhole == 0) listener.feed(fuzzer);
    if (i % kWhole == kWhole / 2) feed_connection(fuzzer);
  }
  listener.still_listens();
  std::printf("%llu cases\n", static_cast<unsigned long long>(cases));
  return 0;
}
