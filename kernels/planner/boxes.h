// Boxes of tensors, and the intersections of the boxes of a maker and a reader.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bow::planner {

// A 64-bit hash of integers. Has to agree with the function in bow/planning/simulator/step_model.py.
class Code {
 public:
  void add(int64_t number) {
    code_ = (code_ ^ static_cast<uint64_t>(number)) * 0x9E3779B97F4A7C15u;
    code_ ^= code_ >> 29;
  }
  uint64_t value() const { return code_; }

 private:
  uint64_t code_ = 0x243F6A8885A308D3u;
};

// By tile: a box of a tensor, or none.
struct BoxList {
  int rank = 0;
  std::vector<int64_t> bounds;  // [tile, dimension, start and end]
  std::vector<uint8_t> present;

  int size() const { return static_cast<int>(present.size()); }
  const int64_t* box(int tile) const { return bounds.data() + 2 * static_cast<size_t>(rank) * tile; }
};

// The part of a maker tile's box that a reader tile reads.
struct Piece {
  int made = 0;
  int read = 0;
  int64_t volume = 0;
  uint64_t code = 0;
};

// Intersections of the tiles of makers and readers, cached by pair of box lists.
class Pieces {
 public:
  int add(BoxList list) {
    lists_.push_back(std::move(list));
    return static_cast<int>(lists_.size()) - 1;
  }

  // The pieces of an operator's output number `slot`, by reading tile. Valid until the next call.
  const std::vector<Piece>& between(int made, int read, int slot) {
    const uint64_t key = static_cast<uint64_t>(made) << 36 | static_cast<uint64_t>(read) << 8 | slot;
    const auto found = known_.find(key);
    if (found != known_.end()) return found->second;
    if (remembered_ > kMostRemembered) {
      known_.clear();
      remembered_ = 0;
    }
    std::vector<Piece>& pieces = known_[key];
    intersect(lists_[made], lists_[read], slot, pieces);
    remembered_ += pieces.size();
    return pieces;
  }

 private:
  static constexpr size_t kMostRemembered = size_t{4} << 20;  // 32 bytes each

  static void intersect(const BoxList& made, const BoxList& read, int slot, std::vector<Piece>& pieces) {
    for (int reader = 0; reader < read.size(); ++reader) {
      if (!read.present[reader]) continue;
      for (int maker = 0; maker < made.size(); ++maker) {
        const int64_t *one = made.box(maker), *other = read.box(reader);
        Piece piece{maker, reader, 1, 0};
        Code code;
        code.add(slot);
        for (int dimension = 0; dimension < made.rank && piece.volume; ++dimension) {
          const int64_t start = std::max(one[2 * dimension], other[2 * dimension]);
          const int64_t end = std::min(one[2 * dimension + 1], other[2 * dimension + 1]);
          piece.volume *= std::max<int64_t>(0, end - start);
          code.add(start);
          code.add(end);
        }
        if (!piece.volume) continue;
        piece.code = code.value();
        pieces.push_back(piece);
      }
    }
    pieces.shrink_to_fit();
  }

  std::vector<BoxList> lists_;
  std::unordered_map<uint64_t, std::vector<Piece>> known_;
  size_t remembered_ = 0;
};

}  // namespace bow::planner
