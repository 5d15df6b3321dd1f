// The model to split and place, as plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "tasks.h"
#include "weights.h"

namespace bow::planner {

// An operator's tiles, independent of their devices.
struct Tiling {
  int num_tiles = 0;
  std::vector<int> outputs;  // by output: the number of a box list
  std::vector<int> inputs;   // by input
  std::vector<int64_t> output_bytes, gradient_bytes;
  std::vector<int> sums;  // by tile; empty: no sums
  std::vector<int64_t> sum_bytes;
  std::vector<std::vector<int>> parts;  // by group of the operator, by tile
};

struct Reader {
  int op = 0;
  int slot = 0;
};

struct Tensor {
  int maker = kNone;  // kNone: an input of the batch
  int slot = 0;
  int64_t itemsize = 0;
  bool flows = false;  // whether it has a gradient
  std::vector<Reader> readers;
};

struct Operator {
  std::vector<int> inputs, outputs;  // tensors
  std::vector<int> groups;           // of weights
  bool has_backward = false;
};

// The model of one learner. Operators and groups of all learners are numbered consecutively, learner by learner.
struct Model {
  std::vector<Operator> operators;
  std::vector<Tensor> tensors;
  std::vector<WeightParts> groups;
  int learners = 1;
  double copies = 1;  // of the trained weights, permanently in memory

  int num_operators() const { return static_cast<int>(operators.size()); }
  int num_groups() const { return static_cast<int>(groups.size()); }
  const Operator& operator_of(int op) const { return operators[op % num_operators()]; }
  int first_of_learner(int op) const { return op - op % num_operators(); }
  int group_of(int op, int group) const { return op / num_operators() * num_groups() + group; }
};

// The tiling and placement of an operator, and its tasks.
struct Placed {
  int tiling = kNone;
  std::vector<int32_t> devices;
  std::vector<Time> forward_ns, backward_ns;
  std::vector<Id> forward, backward, sums;
  std::vector<Id> made, gradients;  // by tile: when its results, and the gradients of its inputs, exist
};

struct Change {
  int op = 0;
  Placed placed;
};

}  // namespace bow::planner
