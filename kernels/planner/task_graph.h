// The task graph of a partition, edited incrementally; bow/planning/simulator/python_simulator.py documents its structure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "boxes.h"
#include "factory.h"
#include "model.h"
#include "tasks.h"
#include "topology.h"
#include "transfers.h"
#include "weight_tasks.h"

namespace bow::planner {

class TaskGraph {
  Topology topology_;
  Model model_;

 public:
  TaskGraph(Topology topology, Model model, UpdateTime update_time)
      : topology_(std::move(topology)),
        model_(std::move(model)),
        tasks(topology_),
        factory_(tasks, topology_, model_),
        weights_(tasks, factory_, model_, topology_.num_devices(), std::move(update_time)),
        placed_(model_.learners * model_.num_operators()),
        is_changing_(placed_.size()),
        seen_(topology_.num_devices()) {}

  TaskGraph(const TaskGraph&) = delete;

  Tasks tasks;
  Pieces pieces;

  const Topology& topology() const { return topology_; }
  Model& model() { return model_; }
  const std::vector<Placed>& placements() const { return placed_; }

  int add_tiling(Tiling tiling) {
    tilings_.push_back(std::move(tiling));
    return static_cast<int>(tilings_.size()) - 1;
  }

  // Memory in use throughout a step.
  int64_t lasting_bytes(int device) const {
    return std::llrint(model_.copies * static_cast<double>(weights_.trained_bytes(device))) +
           weights_.frozen_bytes(device);
  }

  // Change the placement of operators. `commit` or `rollback` follows.
  void apply(std::vector<Change> changes) {
    for (Change& change : changes) {
      is_changing_[change.op] = 1;
      before_.emplace_back(change.op, std::exchange(placed_[change.op], std::move(change.placed)));
    }
    weights_.begin();
    for (const auto& [op, old] : before_) {
      kill(old);
      if (old.tiling != kNone) weights_.count(op, tiling(old), old.devices, -1);
      weights_.count(op, tiling(placed_[op]), placed_[op].devices, 1);
    }
    weights_.kill();
    tasks.cut();
    for (const auto& [op, old] : before_) create(op);
    for (const auto& [op, old] : before_) connect(op);
    weights_.create();
    for (const auto& [op, old] : before_) weights_.connect(op, placed_[op]);
    for (const auto& [op, old] : before_) is_changing_[op] = 0;
  }

  void commit() {
    tasks.commit();
    weights_.commit();
    before_.clear();
  }

  void rollback() {
    tasks.rollback();
    for (auto& [op, old] : before_) {
      weights_.recount(op, tiling(placed_[op]), placed_[op].devices, -1);
      weights_.recount(op, tiling(old), old.devices, 1);
      placed_[op] = std::move(old);
    }
    weights_.rollback();
    before_.clear();
  }

  // Remove all tasks.
  void clear() {
    tasks.clear();
    weights_.clear();
    for (Placed& placed : placed_) placed = Placed{};
    before_.clear();
  }

 private:
  const Tiling& tiling(const Placed& placed) const { return tilings_[placed.tiling]; }

  void kill(const Placed& old) {
    for (const auto* ids : {&old.forward, &old.backward, &old.sums}) {
      for (const Id id : *ids) tasks.kill(id);
    }
    for (const Id id : old.made) {
      for (const Id later : tasks.after(id)) {
        if (tasks.kind(later) == Kind::kTransfer) kill_transfer(later);
      }
    }
    for (const Id id : old.forward) {
      for (const Id earlier : tasks.before(id)) {
        if (tasks.kind(earlier) != Kind::kTransfer || tasks[earlier].has(kDead)) continue;
        const auto readers = tasks.after(earlier);
        if (std::all_of(readers.begin(), readers.end(), [this](Id reader) { return tasks[reader].has(kDead); })) {
          kill_transfer(earlier);
        }
      }
    }
  }

  void kill_transfer(Id id) {
    tasks.kill(id);
    if (tasks.details(id).partner != kNone) tasks.kill(tasks.details(id).partner);
  }

  void create(int op) {
    Placed& placed = placed_[op];
    const Tiling& of = tiling(placed);
    const bool has_backward = model_.operator_of(op).has_backward;
    placed.forward.clear();
    placed.backward.clear();
    placed.sums.clear();
    // Tasks that run in succession are adjacent in memory.
    for (int tile = 0; tile < of.num_tiles; ++tile) {
      const int device = placed.devices[tile];
      placed.forward.push_back(factory_.tile(Kind::kForward, op, tile, device, placed.forward_ns[tile]));
      tasks.keep(placed.forward[tile], device, of.output_bytes[tile]);
    }
    for (int tile = 0; tile < of.num_tiles && has_backward; ++tile) {
      const int device = placed.devices[tile];
      placed.backward.push_back(factory_.tile(Kind::kBackward, op, tile, device, placed.backward_ns[tile]));
      tasks.keep(placed.backward[tile], device, of.gradient_bytes[tile]);
      couple(placed.forward[tile], placed.backward[tile]);
      tasks.connect(placed.forward[tile], placed.backward[tile]);
    }
    placed.made = placed.forward;
    placed.gradients = placed.backward;
    for (int sum = 0; sum < static_cast<int>(of.sum_bytes.size()); ++sum) create_sums(op, placed, of, sum);
  }

  // Partial sums within an operator, modelled as tasks after it.
  void create_sums(int op, Placed& placed, const Tiling& of, int sum) {
    std::vector<int32_t> members;
    for (int tile = 0; tile < of.num_tiles; ++tile) {
      if (of.sums[tile] == sum) members.push_back(placed.devices[tile]);
    }
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    if (members.size() < 2) return;
    const auto create = [&](Kind kind, const std::vector<Id>& tiles, std::vector<Id>& leaves) {
      const Id id = factory_.sum(kind, op, sum, members, of.sum_bytes[sum]);
      placed.sums.push_back(id);
      for (int tile = 0; tile < of.num_tiles; ++tile) {
        if (of.sums[tile] != sum) continue;
        tasks.connect(tiles[tile], id);
        leaves[tile] = id;
      }
    };
    create(Kind::kForwardSum, placed.forward, placed.made);
    if (!placed.backward.empty()) create(Kind::kBackwardSum, placed.backward, placed.gradients);
  }

  // Connect all tensors with a changed end, each once: those that a changed operator makes, and those that it reads
  // from an unchanged operator.
  void connect(int op) {
    const int first = model_.first_of_learner(op);
    const Operator& of = model_.operator_of(op);
    for (const int output : of.outputs) {
      const Tensor& tensor = model_.tensors[output];
      transfers_.clear();
      for (const Reader& reader : tensor.readers) connect(tensor, op, first + reader.op, reader.slot);
    }
    for (size_t slot = 0; slot < of.inputs.size(); ++slot) {
      const Tensor& tensor = model_.tensors[of.inputs[slot]];
      const int maker = first + tensor.maker;
      if (tensor.maker == kNone || is_changing_[maker]) continue;
      remember_transfers(tensor, maker);
      connect(tensor, maker, op, static_cast<int>(slot));
    }
  }

  void connect(const Tensor& tensor, int maker, int reader, int slot) {
    const Placed &from = placed_[maker], &to = placed_[reader];
    const int made = tiling(from).outputs[tensor.slot], read = tiling(to).inputs[slot];
    // If no device has two reading tiles, no transfer can be shared.
    const bool shares = tensor.readers.size() > 1 || !are_different(to.devices);
    for (const Piece& piece : pieces.between(made, read, tensor.slot)) {
      const int source = from.devices[piece.made], target = to.devices[piece.read];
      if (source == target) {
        tasks.connect(from.made[piece.made], to.forward[piece.read]);
        if (tensor.flows) tasks.connect(to.gradients[piece.read], from.backward[piece.made]);
        continue;
      }
      const uint64_t order = factory_.order(Kind::kTransfer, maker, piece.made, target);
      Id there = shares ? transfers_.find(order, piece.code) : kNone;
      if (there == kNone) {
        there = create_move(tensor, maker, from, piece, source, target);
        if (shares) transfers_.add(order, piece.code, there);
      }
      tasks.connect(there, to.forward[piece.read]);
      if (tensor.flows) tasks.connect(to.gradients[piece.read], tasks.details(there).partner);
    }
  }

  // Transfer a part of a tensor to a device, and its gradient back.
  Id create_move(const Tensor& tensor, int maker, const Placed& from, const Piece& piece, int source, int target) {
    const Id there = factory_.transfer(Kind::kTransfer, maker, piece, tensor.itemsize, source, target);
    tasks.connect(from.made[piece.made], there);
    if (!tensor.flows) return there;
    const Id back = factory_.transfer(Kind::kGradient, maker, piece, tensor.itemsize, target, source);
    tasks.connect(back, from.backward[piece.made]);
    couple(there, back);
    return there;
  }

  void couple(Id one, Id other) {
    tasks.details(one).partner = other;
    tasks.details(other).partner = one;
  }

  // Collect the existing transfers of a tensor.
  void remember_transfers(const Tensor& tensor, int maker) {
    transfers_.clear();
    if (tensor.readers.size() == 1) return;
    for (const Id id : placed_[maker].made) {
      for (const Id later : tasks.after(id)) {
        if (tasks.kind(later) == Kind::kTransfer) transfers_.add(tasks[later].order, tasks.details(later).code, later);
      }
    }
  }

  bool are_different(const std::vector<int32_t>& devices) {
    ++moment_;
    for (const int32_t device : devices) {
      if (std::exchange(seen_[device], moment_) == moment_) return false;
    }
    return true;
  }

  Factory factory_;
  WeightTasks weights_;
  std::vector<Tiling> tilings_;
  std::vector<Placed> placed_;                    // by operator, of all learners
  std::vector<std::pair<int, Placed>> before_;  // since the last commit or rollback, by operator that changes

  // Scratch:
  std::vector<uint8_t> is_changing_;  // by operator
  std::vector<uint64_t> seen_;        // by device
  uint64_t moment_ = 0;
  Transfers transfers_;
};

}  // namespace bow::planner
