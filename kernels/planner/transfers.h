// Existing transfers, shared by the tiles of a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tasks.h"

namespace bow::planner {

// Transfers by order and code, in a hash table that is cleared in O(1).
class Transfers {
 public:
  void clear() {
    ++moment_;
    size_ = 0;
  }

  Id find(uint64_t order, uint64_t code) const {
    if (slots_.empty()) return kNone;
    for (size_t index = hash(order, code);; ++index) {
      const Slot& slot = slots_[index & (slots_.size() - 1)];
      if (slot.moment != moment_) return kNone;
      if (slot.order == order && slot.code == code) return slot.id;
    }
  }

  void add(uint64_t order, uint64_t code, Id id) {
    if (2 * ++size_ > slots_.size()) grow();
    put({order, code, moment_, id});
  }

 private:
  struct Slot {
    uint64_t order = 0, code = 0, moment = 0;
    Id id = kNone;
  };

  static size_t hash(uint64_t order, uint64_t code) {
    const uint64_t mixed = (order * 0x9E3779B97F4A7C15u) ^ code;
    return mixed ^ mixed >> 32;
  }

  void put(const Slot& slot) {
    size_t index = hash(slot.order, slot.code);
    while (slots_[index & (slots_.size() - 1)].moment == moment_) ++index;
    slots_[index & (slots_.size() - 1)] = slot;
  }

  void grow() {
    std::vector<Slot> old(std::max<size_t>(64, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.moment == moment_) put(slot);
    }
  }

  std::vector<Slot> slots_;
  uint64_t moment_ = 1;
  size_t size_ = 0;
};

}  // namespace bow::planner
