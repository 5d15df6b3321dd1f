// Many short, growing lists of numbers in one block of memory, without system allocations.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace bow::planner {

struct List {
  uint32_t at = 0;
  uint32_t size = 0;
  uint32_t capacity = 0;  // a power of two, or 0
};

class Lists {
 public:
  // Valid until the next push or assignment.
  std::span<int32_t> of(const List& list) { return {numbers_.data() + list.at, list.size}; }

  const int32_t* numbers() const { return numbers_.data(); }

  void push(List& list, int32_t number) {
    if (list.size == list.capacity) grow(list, list.size + 1);
    numbers_[list.at + list.size++] = number;
  }

  void assign(List& list, std::span<const int32_t> numbers) {
    if (numbers.size() > list.capacity) grow(list, static_cast<uint32_t>(numbers.size()));
    std::copy(numbers.begin(), numbers.end(), numbers_.begin() + list.at);
    list.size = static_cast<uint32_t>(numbers.size());
  }

  void release(List& list) {
    if (list.capacity) free_[std::countr_zero(list.capacity)].push_back(list.at);
    list = List{};
  }

  void clear() {
    numbers_.clear();
    for (auto& free : free_) free.clear();
  }

 private:
  static constexpr uint32_t kLeast = 4;

  void grow(List& list, uint32_t size) {
    List larger{0, list.size, std::bit_ceil(std::max(size, kLeast))};
    auto& free = free_[std::countr_zero(larger.capacity)];
    if (free.empty()) {
      larger.at = static_cast<uint32_t>(numbers_.size());
      numbers_.resize(numbers_.size() + larger.capacity);
    } else {
      larger.at = free.back();
      free.pop_back();
    }
    std::copy_n(numbers_.begin() + list.at, list.size, numbers_.begin() + larger.at);
    release(list);
    list = larger;
  }

  std::vector<int32_t> numbers_;
  std::array<std::vector<uint32_t>, 32> free_;
};

}  // namespace bow::planner
