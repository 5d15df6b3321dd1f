// Groups of weights: the parts that each device holds, and the parts shared by sets of devices.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tasks.h"

namespace bow::planner {

using Mask = std::vector<uint64_t>;  // a bit for each device

inline std::vector<int32_t> members_of(const Mask& mask) {
  std::vector<int32_t> members;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint64_t bits = mask[word]; bits; bits &= bits - 1) {
      members.push_back(static_cast<int32_t>(64 * word) + std::countr_zero(bits));
    }
  }
  return members;
}

// The parts of a group's weights in all tilings that were used; the same for all learners.
class WeightParts {
 public:
  struct Weight {
    int rank = 0;
    int64_t itemsize = 0;
    std::vector<std::vector<int64_t>> boxes;  // each: [dimension, start and end]
    std::map<std::vector<int64_t>, int> numbers;
  };

  WeightParts(const std::vector<std::pair<int, int64_t>>& ranks_and_itemsizes, bool trainable) : trainable(trainable) {
    for (const auto& [rank, itemsize] : ranks_and_itemsizes) weights.push_back({rank, itemsize, {}, {}});
  }

  // Return the number of a part: the concatenated boxes of its weights.
  int add(const int64_t* bounds) {
    std::vector<int> part;
    for (Weight& weight : weights) {
      std::vector<int64_t> box(bounds, bounds + 2 * weight.rank);
      bounds += 2 * weight.rank;
      const auto [found, is_new] = weight.numbers.try_emplace(box, static_cast<int>(weight.boxes.size()));
      if (is_new) weight.boxes.push_back(std::move(box));
      part.push_back(found->second);
    }
    const auto [found, is_new] = numbers_.try_emplace(part, static_cast<int>(parts.size()));
    if (is_new) parts.push_back(std::move(part));
    return found->second;
  }

  bool trainable;
  std::vector<Weight> weights;
  std::vector<std::vector<int>> parts;  // by part, by weight: the number of its box

 private:
  std::map<std::vector<int>, int> numbers_;
};

// The part of a group that exactly this set of devices holds.
struct Shared {
  Mask mask;
  int64_t bytes = 0;
  Id reduction = kNone;

  bool operator<(const Shared& other) const { return mask < other.mask; }
};

// A learner's weights of a group: the parts that each device holds, and the resulting tasks.
class WeightGroup {
 public:
  struct Device {
    int tiles = 0;
    int64_t bytes = 0;
    Id gather = kNone;
    Id update = kNone;
  };

  WeightGroup(WeightParts& parts, int num_devices) : parts_(&parts), devices_(num_devices) {}

  bool trainable() const { return parts_->trainable; }
  std::vector<Shared>& shared() { return shared_; }
  std::vector<Device>& devices() { return devices_; }

  // Whether a device has gained or lost a part since the last call.
  bool take_changed() { return std::exchange(changed_, false); }

  // Add or remove a tile.
  void count(int part, int device, int sign) {
    if (static_cast<size_t>(part) >= holders_.size()) {
      holders_.resize(part + 1, Mask((devices_.size() + 63) / 64));
      counts_.resize((part + 1) * devices_.size());
    }
    devices_[device].tiles += sign;
    int32_t& count = counts_[part * devices_.size() + device];
    const bool held = count;
    count += sign;
    if (held == (count != 0)) return;
    holders_[part][device / 64] ^= uint64_t{1} << (device % 64);
    changed_ = true;
  }

  // The shared parts, sorted by set of devices.
  std::vector<Shared> sets() const {
    std::vector<Shared> found;
    for (size_t weight = 0; weight < parts_->weights.size(); ++weight) collect(weight, found);
    std::sort(found.begin(), found.end());
    std::vector<Shared> sets;
    for (Shared& each : found) {
      if (sets.empty() || sets.back().mask != each.mask) {
        sets.push_back(std::move(each));
      } else {
        sets.back().bytes += each.bytes;
      }
    }
    return sets;
  }

 private:
  // The edges of all boxes cut a weight into cells, each held by a set of devices.
  void collect(size_t weight_number, std::vector<Shared>& found) const {
    const WeightParts::Weight& weight = parts_->weights[weight_number];
    std::map<int, Mask> held;  // by box
    for (size_t part = 0; part < holders_.size(); ++part) {
      const Mask& holders = holders_[part];
      if (std::all_of(holders.begin(), holders.end(), [](uint64_t word) { return word == 0; })) continue;
      Mask& mask = held.try_emplace(parts_->parts[part][weight_number], Mask(holders.size())).first->second;
      merge(mask.data(), holders);
    }
    if (held.empty()) return;
    std::vector<std::vector<int64_t>> borders(weight.rank);
    for (const auto& [box, mask] : held) {
      for (int dimension = 0; dimension < weight.rank; ++dimension) {
        const int64_t* side = weight.boxes[box].data() + 2 * dimension;
        borders[dimension].insert(borders[dimension].end(), side, side + 2);
      }
    }
    size_t num_cells = 1;
    for (auto& ends : borders) {
      std::sort(ends.begin(), ends.end());
      ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
      num_cells *= ends.size() - 1;
    }
    const size_t words = held.begin()->second.size();
    std::vector<uint64_t> cells(num_cells * words);
    for (const auto& [box, mask] : held) paint(weight.boxes[box], borders, 0, 0, mask, cells);
    read(borders, 0, 0, weight.itemsize, words, cells, found);
  }

  // Add holders to all cells of a box.
  static void paint(const std::vector<int64_t>& box, const std::vector<std::vector<int64_t>>& borders, size_t dimension,
                    size_t cell, const Mask& mask, std::vector<uint64_t>& cells) {
    if (dimension == borders.size()) return merge(&cells[cell * mask.size()], mask);
    const std::vector<int64_t>& ends = borders[dimension];
    const auto first = std::lower_bound(ends.begin(), ends.end(), box[2 * dimension]) - ends.begin();
    for (size_t index = first; index + 1 < ends.size() && ends[index] < box[2 * dimension + 1]; ++index) {
      paint(box, borders, dimension + 1, cell * (ends.size() - 1) + index, mask, cells);
    }
  }

  static void read(const std::vector<std::vector<int64_t>>& borders, size_t dimension, size_t cell, int64_t bytes,
                   size_t words, const std::vector<uint64_t>& cells, std::vector<Shared>& found) {
    if (dimension == borders.size()) {
      const auto first = cells.begin() + static_cast<std::ptrdiff_t>(cell * words);
      Mask mask(first, first + static_cast<std::ptrdiff_t>(words));
      if (std::any_of(mask.begin(), mask.end(), [](uint64_t word) { return word != 0; })) {
        found.push_back({std::move(mask), bytes, kNone});
      }
      return;
    }
    const std::vector<int64_t>& ends = borders[dimension];
    for (size_t index = 0; index + 1 < ends.size(); ++index) {
      const size_t inner = cell * (ends.size() - 1) + index;
      read(borders, dimension + 1, inner, bytes * (ends[index + 1] - ends[index]), words, cells, found);
    }
  }

  static void merge(uint64_t* into, const Mask& mask) {
    for (size_t word = 0; word < mask.size(); ++word) into[word] |= mask[word];
  }

  WeightParts* parts_;
  std::vector<Device> devices_;
  std::vector<Mask> holders_;    // by part
  std::vector<int32_t> counts_;  // by part, by device: tiles
  std::vector<Shared> shared_;
  bool changed_ = false;
};

}  // namespace bow::planner
