// What is split and placed, as plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "tasks.h"
#include "weights.h"

namespace bow::planner {

// An operator's tiles, wherever they are computed.
struct Tiling {
  int num_tiles = 0;
  std::vector<int> outputs;  // by output: the number of a box list
  std::vector<int> inputs;   // by input
  std::vector<int64_t> output_bytes, gradient_bytes;
  std::vector<int> sums;  // by tile; empty: nothing is summed
  std::vector<int64_t> sum_bytes;
  std::vector<std::vector<int>> parts;  // by group of the operator, by tile
};

struct Reader {
  int op = 0;
  int slot = 0;
};

struct Tensor {
  int maker = kNone;  // kNone: it comes with the batch
  int slot = 0;
  int64_t itemsize = 0;
  bool flows = false;  // whether a gradient goes back through it
  std::vector<Reader> readers;
};

struct Operator {
  std::vector<int> inputs, outputs;  // tensors
  std::vector<int> groups;           // of weights
  bool has_backward = false;
};

// Of one learner. Operators and groups of all learners are counted through: those of the first learner come first.
struct Model {
  std::vector<Operator> operators;
  std::vector<Tensor> tensors;
  std::vector<WeightParts> groups;
  int learners = 1;
  double copies = 1;  // of the weights that are trained, all the time

  int num_operators() const { return static_cast<int>(operators.size()); }
  int num_groups() const { return static_cast<int>(groups.size()); }
  const Operator& operator_of(int op) const { return operators[op % num_operators()]; }
  int first_of_learner(int op) const { return op - op % num_operators(); }
  int group_of(int op, int group) const { return op / num_operators() * num_groups() + group; }
};

// How an operator is split and placed, and the tasks that come of it.
struct Placed {
  int tiling = kNone;
  std::vector<int32_t> devices;
  std::vector<Time> forward_ns, backward_ns;
  std::vector<Id> forward, backward, sums;
  std::vector<Id> made, gradients;  // by tile: after what its results and the gradients of its inputs may leave
};

struct Change {
  int op = 0;
  Placed placed;
};

}  // namespace bow::planner
