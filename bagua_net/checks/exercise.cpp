// Drives the library within one process, for the sanitizers: sixteen connections at once,
// thirty-two requests in flight on each, sizes from nothing to a megabyte; then closes that come at
// bad moments. Before that, how chunks follow a rate, and choices what TCP has counted.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "chunk_size.h"
#include "plugin.h"
#include "tuner.h"

using namespace bagua_net;

namespace {

constexpr int kConnections = 16;
constexpr size_t kSizes[] = {0, 1, 1448, 65'536, 1 << 20};
constexpr size_t kExtra = 100;  // receives are posted larger than sends

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "exercise: %s\n", what);
  std::exit(1);
}

struct Pair {
  void* listener = nullptr;
  void* sender = nullptr;
  void* receiver = nullptr;
};

Pair connect_pair() {
  Pair pair;
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  require(plugin::listen(0, handle, &pair.listener) == ncclSuccess, "listen");
  while (pair.sender == nullptr) {
    require(plugin::connect(0, handle, &pair.sender) == ncclSuccess, "connect");
  }
  while (pair.receiver == nullptr) {
    require(plugin::accept(pair.listener, &pair.receiver) == ncclSuccess, "accept");
  }
  return pair;
}

char byte_at(size_t message, size_t index) { return static_cast<char>(message * 31 + index); }

int finish(void* request) {
  for (int done = 0, size = 0;; std::this_thread::yield()) {
    require(plugin::test(request, &done, &size) == ncclSuccess, "test");
    if (done) return size;
  }
}

void send_all(void* comm) {
  std::vector<std::unique_ptr<char[]>> messages;
  std::vector<void*> requests(NCCL_NET_MAX_REQUESTS);
  for (size_t m = 0; m < requests.size(); ++m) {
    const size_t size = kSizes[m % std::size(kSizes)];
    messages.emplace_back(new char[size + 1]);
    for (size_t i = 0; i < size; ++i) messages.back()[i] = byte_at(m, i);
    require(plugin::isend(comm, messages.back().get(), size, &requests[m]) == ncclSuccess, "isend");
    require(requests[m] != nullptr, "no request");
  }
  for (void* request : requests) finish(request);
}

void receive_all(void* comm) {
  std::vector<std::unique_ptr<char[]>> messages;
  std::vector<void*> requests(NCCL_NET_MAX_REQUESTS);
  for (size_t m = 0; m < requests.size(); ++m) {
    const size_t size = kSizes[m % std::size(kSizes)] + kExtra;
    messages.emplace_back(new char[size]);
    void* data = messages.back().get();
    require(plugin::irecv(comm, 1, &data, size, &requests[m]) == ncclSuccess, "irecv");
  }
  for (size_t m = requests.size(); m-- > 0;) {  // in another order than they were posted in
    const size_t size = kSizes[m % std::size(kSizes)];
    require(finish(requests[m]) == static_cast<int>(size), "size");
    for (size_t i = 0; i < size; ++i) require(messages[m][i] == byte_at(m, i), "content");
  }
}

void close_pair(const Pair& pair, bool sender_first) {
  if (sender_first) plugin::close_send(pair.sender);
  plugin::close_receive(pair.receiver);
  if (!sender_first) plugin::close_send(pair.sender);
  plugin::close_listen(pair.listener);
}

void many_at_once() {
  std::vector<Pair> pairs(kConnections);
  for (Pair& pair : pairs) pair = connect_pair();
  std::vector<std::thread> threads;
  for (const Pair& pair : pairs) {
    threads.emplace_back(send_all, pair.sender);
    threads.emplace_back(receive_all, pair.receiver);
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < pairs.size(); ++i) close_pair(pairs[i], i % 2 == 0);
}

// One end is closed while the other has requests open: those fail, and the memory is free.
void close_amid(bool sender_first) {
  const Pair pair = connect_pair();
  const size_t size = 32 << 20;
  std::unique_ptr<char[]> from(new char[size]()), to(new char[size]);
  void *sent = nullptr, *received = nullptr, *data = to.get();
  plugin::irecv(pair.receiver, 1, &data, size, &received);
  plugin::isend(pair.sender, from.get(), size, &sent);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  (sender_first ? plugin::close_send : plugin::close_receive)(sender_first ? pair.sender
                                                                           : pair.receiver);
  (sender_first ? from : to).reset();
  void* left = sender_first ? received : sent;
  int done = 0;
  while (plugin::test(left, &done, nullptr) == ncclSuccess && !done) std::this_thread::yield();
  (sender_first ? to : from).reset();
  (sender_first ? plugin::close_receive : plugin::close_send)(sender_first ? pair.receiver
                                                                           : pair.sender);
  plugin::close_listen(pair.listener);
}

// Intervals of one stream, each of so many bytes in so many seconds, between two moments at which
// its socket was full.
size_t chunk_after(const Settings& settings, int intervals, uint64_t bytes, double seconds) {
  ChunkSize size(settings);
  Clock::time_point now{};
  for (int i = 0; i <= intervals; ++i) {
    size.on_full(now);
    size.on_taken(bytes);
    now += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  size.on_idle();  // a pause, of which the rate must not hear
  size.on_full(now + std::chrono::hours(1));
  return size.chunk_bytes();
}

void chunks_follow_rates() {
  Settings settings;
  require(chunk_after(settings, 0, 1 << 20, 0.001) == kFirstChunk, "nothing is known yet");
  require(chunk_after(settings, 4, 1 << 20, 0.001) == 512 << 10, "1 GB/s");
  require(chunk_after(settings, 4, 150'000, 0.01) == 128 << 10, "15 MB/s, so 120 kB in 8 ms");
  require(chunk_after(settings, 4, 1 << 16, 1) == 32 << 10, "65 kB/s");
  settings.chunk_bytes = 200 << 10;
  require(chunk_after(settings, 4, 1 << 16, 1) == 200 << 10, "as asked for");
  ChunkSize eased((Settings()));
  for (int i = 0; i < 40; ++i) eased.on_taken(1 << 16);
  require(eased.chunk_bytes() == 512 << 10, "a kernel that takes all");
  ChunkSize slowing((Settings()));
  Clock::time_point now{};
  for (int i = 0; i < 20; ++i) {
    slowing.on_full(now);
    slowing.on_taken(1 << 20);
    now += std::chrono::milliseconds(i < 10 ? 1 : 1000);
  }
  require(slowing.chunk_bytes() == 32 << 10, "a stream that has become slow");
}

// What is left to be chosen, from what TCP has counted; `mbit` is the rate of the first megabytes.
Choice choice_at(const Settings& settings, uint64_t lost, double mbit) {
  constexpr uint64_t kSegments = 10'000, kBytes = 8 << 20;
  Tuner tuner(settings, kAutoStreams);
  tuner.begin();
  require(!tuner.is_due(kBytes - 1), "too early");
  std::this_thread::sleep_for(std::chrono::duration<double>(8e-6 * kBytes / mbit));
  require(tuner.is_due(1), "after 8 MiB");
  LinkCounts counts{};
  counts.segments = kSegments;
  counts.retransmitted = lost;
  return tuner.choose(counts);
}

void choices_follow_loss_and_rate() {
  Settings settings;
  require(choice_at(settings, 0, 500).streams == kCleanStreams, "one clean link");
  require(choice_at(settings, 0, 500).congestion.empty(), "no cause for another one");
  require(choice_at(settings, 0, 1e6).streams == kAutoStreams, "a fast link");
  require(choice_at(settings, 4, 500).congestion.empty(), "a few may be lost anywhere");
  require(choice_at(settings, 5, 500).streams == kAutoStreams, "packets are lost");
  require(choice_at(settings, 5, 500).congestion == "bbr", "and CUBIC suffers");
  settings.congestion = "";
  require(choice_at(settings, 5, 500).congestion.empty(), "as asked for");
}

}  // namespace

int main() {
  chunks_follow_rates();
  choices_follow_loss_and_rate();
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  require(plugin::init(nullptr) == ncclSuccess, "init");
  many_at_once();
  for (int i = 0; i < 4; ++i) close_amid(i % 2 == 0);
  std::puts("all well");
  return 0;
}
