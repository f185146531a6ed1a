// Which bytes of a message have been taken, so that none counts twice.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace bagua_net {

// Neighbours are joined: it holds no more intervals than there are gaps, plus one. A sender leaves
// gaps only for chunks that are on their way. A call takes logarithmic time in that number.
class Claims {
 public:
  // Takes begin to end - 1. False, and nothing is taken, where one of them was taken before.
  bool take(uint64_t begin, uint64_t end) {
    auto next = begins_.upper_bound(begin);  // the first that ends after `begin`
    if (next != begins_.end() && next->second < end) return false;
    if (next == begins_.end() || next->second > end) {
      next = begins_.emplace_hint(next, end, begin);
    }
    next->second = begin;
    if (next == begins_.begin()) return true;
    const auto before = std::prev(next);
    if (before->first == begin) {
      next->second = before->second;
      begins_.erase(before);
    }
    return true;
  }

 private:
  std::map<uint64_t, uint64_t> begins_;  // by their ends
};

}  // namespace bagua_net
