// What travels: the handle that NCCL carries to the peer, and what the streams say to each other.
//
//   connecting side                      listening side
//   Hello {secret, connection, index, timeout} ->              first on every stream
//                                     <- Welcome {answer, timeout}   once all streams are there
//   ChunkHeader, payload ...          ->                       any chunk, by any stream
//   ChunkHeader (kPing)               ->  <- kBeat             where nothing else is said
//
// The digit in each magic number is the version of all this.
#pragma once

#include <net.h>

#include <array>
#include <cstdint>
#include <cstring>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The wire format is that of little-endian hosts."
#endif

namespace bagua_net {

using Secret = std::array<uint8_t, 16>;

inline constexpr uint64_t kLargestMessage = NCCL_MAX_NET_SIZE_BYTES;
inline constexpr uint32_t kHandleMagic = 0x324e4742;   // "BGN2"
inline constexpr uint32_t kHelloMagic = 0x48324742;    // "BG2H"
inline constexpr uint32_t kWelcomeMagic = 0x57324742;  // "BG2W"
inline constexpr uint32_t kChunkMagic = 0x43324742;    // "BG2C"
inline constexpr int kMostStreams = 64;
inline constexpr uint32_t kLeastTimeoutMs = 100;
inline constexpr uint32_t kMostTimeoutMs = 86'400'000;  // a day
inline constexpr char kBeat = 'b';

struct Handle {
  uint32_t magic;
  uint16_t family;
  uint16_t port;  // of the host's byte order
  uint8_t address[16];
  Secret secret;  // the connecting side knows it
  Secret answer;  // and by this one it knows the listening side
  uint64_t attempt;  // of the connecting side, between its calls; 0 before the first
};
static_assert(sizeof(Handle) <= NCCL_NET_HANDLE_MAXSIZE);

struct Hello {
  uint32_t magic;
  uint16_t index;
  uint16_t num_streams;
  Secret secret;
  Secret connection;
  uint32_t timeout_ms;  // after which silence is death to who says this
};
static_assert(sizeof(Hello) == 44);

struct Welcome {
  uint32_t magic;
  uint32_t timeout_ms;  // likewise
  Secret answer;
};
static_assert(sizeof(Welcome) == 24);

enum ChunkKind : uint32_t { kData = 1, kPing = 2 };

struct ChunkHeader {
  uint32_t magic;
  uint32_t kind;
  uint64_t sequence;  // of the message on its connection, from 0
  uint64_t total;     // bytes of the message
  uint64_t offset;    // of this chunk in it
  uint64_t length;    // of this chunk
};
static_assert(sizeof(ChunkHeader) == 40);

// Whether two secrets are equal, in a time that does not tell where they differ.
inline bool equal(const Secret& a, const Secret& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

inline bool is_timeout(uint32_t timeout_ms) {
  return timeout_ms >= kLeastTimeoutMs && timeout_ms <= kMostTimeoutMs;
}

inline bool is_hello(const Hello& hello, const Secret& secret) {
  return hello.magic == kHelloMagic && equal(hello.secret, secret) && hello.num_streams >= 1 &&
         hello.num_streams <= kMostStreams && hello.index < hello.num_streams &&
         is_timeout(hello.timeout_ms);
}

inline bool is_welcome(const Welcome& welcome, const Secret& answer) {
  return welcome.magic == kWelcomeMagic && is_timeout(welcome.timeout_ms) &&
         equal(welcome.answer, answer);
}

// Whether a header contradicts itself; no sum here can overflow.
inline bool is_sound(const ChunkHeader& header) {
  if (header.magic != kChunkMagic) return false;
  if (header.kind == kPing) {
    return header.sequence == 0 && header.total == 0 && header.offset == 0 && header.length == 0;
  }
  return header.kind == kData && header.total <= kLargestMessage &&
         header.offset <= header.total && header.length <= header.total - header.offset &&
         (header.length > 0 || header.total == 0);
}

template <class T>
T read_as(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

}  // namespace bagua_net
