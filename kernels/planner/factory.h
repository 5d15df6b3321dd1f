// Creates tasks: their order, duration and places.
#pragma once

#include <cstdint>
#include <vector>

#include "boxes.h"
#include "model.h"
#include "tasks.h"
#include "topology.h"

namespace bow::planner {

class Factory {
 public:
  Factory(Tasks& tasks, Topology& topology, const Model& model)
      : tasks_(tasks),
        topology_(topology),
        num_operators_(model.learners * model.num_operators()),
        num_groups_(model.learners * model.num_groups()) {}

  // Rank, tile and device; bow/planning/simulator/step_model.py has the same ranks.
  uint64_t order(Kind kind, int owner, int tile, int device) const {
    return rank(kind, owner) << 32 | static_cast<uint64_t>(tile) << 16 | static_cast<uint64_t>(device);
  }

  Id tile(Kind kind, int owner, int tile, int device, Time duration) {
    const Id id = tasks_.create(kind, order(kind, owner, tile, device), 0, duration);
    if (duration) tasks_.occupy_device(id, device);  // a task of no duration, such as a view, occupies no place
    return id;
  }

  // A sum over devices, in ascending order.
  Id sum(Kind kind, int owner, int number, const std::vector<int32_t>& members, int64_t bytes) {
    const Collective sum = topology_.collective(members, bytes);
    Code code;
    for (const int32_t member : members) code.add(member);
    const Id id = tasks_.create(kind, order(kind, owner, number, 0), code.value(), sum.duration);
    tasks_.occupy(id, sum.places);
    return id;
  }

  // The transfer of a part of a tile's output to another device, or of its gradient back.
  Id transfer(Kind kind, int maker, const Piece& piece, int64_t itemsize, int source, int target) {
    const int away = kind == Kind::kTransfer ? target : source;
    const int64_t bytes = piece.volume * itemsize;
    const Route& route = topology_.route(source, target);
    const Time duration = Topology::transfer_time(route, bytes);
    const Id id = tasks_.create(kind, order(kind, maker, piece.made, away), piece.code, duration);
    tasks_.occupy_route(id, route);
    tasks_.keep(id, away, bytes);
    return id;
  }

 private:
  uint64_t rank(Kind kind, int owner) const {
    const auto number = static_cast<int64_t>(kind);
    if (kind <= Kind::kTransfer) return 3 * int64_t{owner} + number;
    if (kind <= Kind::kBackwardSum) {
      return 3 * (2 * num_operators_ - 1 - owner) + number - static_cast<int64_t>(Kind::kGradient);
    }
    if (kind <= Kind::kUpdate) {
      return 6 * num_operators_ + 3 * int64_t{owner} + number - static_cast<int64_t>(Kind::kGather);
    }
    return 6 * num_operators_ + 3 * num_groups_;
  }

  Tasks& tasks_;
  Topology& topology_;
  int64_t num_operators_;
  int64_t num_groups_;
};

}  // namespace bow::planner
