// The simulator as C functions, called from Python with ctypes; independent of Python and torch.
//
// Python checks the arguments. Lists are passed as their concatenated elements, with offsets for several lists.
#include "simulator.h"

#include <cstdint>
#include <utility>
#include <vector>

using namespace bow::planner;

namespace {

std::vector<int> ints(const int32_t* numbers, int32_t size) { return {numbers, numbers + size}; }

std::vector<std::vector<int32_t>> rows(const int32_t* numbers, const int32_t* offsets, int32_t count) {
  std::vector<std::vector<int32_t>> rows;
  for (int32_t row = 0; row < count; ++row) rows.emplace_back(numbers + offsets[row], numbers + offsets[row + 1]);
  return rows;
}

// The outcome of a proposal: a device whose memory is too small, kFits or kTooSlow.
constexpr int32_t kFits = -1, kTooSlow = -2;

int32_t report(const Outcome& outcome, int64_t* needed) {
  *needed = outcome.needed;
  if (outcome.what == Outcome::kTooLarge) return outcome.device;
  return outcome.what == Outcome::kTooSlow ? kTooSlow : kFits;
}

}  // namespace

extern "C" {

struct Builder {
  std::vector<Topology::Channel> channels;
  std::vector<std::vector<int32_t>> routes;
  std::vector<int64_t> capacity;
  bool overlap = true;
  bool passing = false;
  Time sum = 0;
  Model model;
};

Builder* planner_builder(int32_t num_devices, const int64_t* capacity, int32_t num_channels, const int64_t* latency_ns,
                         const double* ns_per_byte, const int32_t* routes, const int32_t* route_offsets,
                         int32_t overlap, int32_t passing, int64_t sum_ns, int32_t learners, double copies) {
  auto* builder = new Builder;
  for (int32_t channel = 0; channel < num_channels; ++channel) {
    builder->channels.push_back({latency_ns[channel], ns_per_byte[channel]});
  }
  builder->routes = rows(routes, route_offsets, num_devices * num_devices);
  builder->capacity.assign(capacity, capacity + num_devices);
  builder->overlap = overlap;
  builder->passing = passing;
  builder->sum = sum_ns;
  builder->model.learners = learners;
  builder->model.copies = copies;
  return builder;
}

void planner_add_tensor(Builder* builder, int32_t maker, int32_t slot, int64_t itemsize, int32_t flows) {
  builder->model.tensors.push_back({maker, slot, itemsize, flows != 0, {}});
}

void planner_add_group(Builder* builder, int32_t num_weights, const int32_t* ranks, const int64_t* itemsizes,
                       int32_t trainable) {
  std::vector<std::pair<int, int64_t>> weights;
  for (int32_t weight = 0; weight < num_weights; ++weight) weights.emplace_back(ranks[weight], itemsizes[weight]);
  builder->model.groups.emplace_back(weights, trainable != 0);
}

// Call after all tensors and groups were added.
void planner_add_operator(Builder* builder, int32_t num_inputs, const int32_t* inputs, int32_t num_outputs,
                          const int32_t* outputs, int32_t num_groups, const int32_t* groups, int32_t has_backward) {
  Model& model = builder->model;
  const int op = static_cast<int>(model.operators.size());
  for (int32_t slot = 0; slot < num_inputs; ++slot) model.tensors[inputs[slot]].readers.push_back({op, slot});
  model.operators.push_back(
      {ints(inputs, num_inputs), ints(outputs, num_outputs), ints(groups, num_groups), has_backward != 0});
}

// Deletes the builder.
Simulator* planner_simulator(Builder* builder, int64_t (*update_ns)(int64_t, int32_t), int32_t algorithm) {
  Topology topology(static_cast<int>(builder->capacity.size()), builder->channels, builder->routes, builder->overlap,
                    builder->sum);
  auto* simulator = new Simulator(std::move(topology), std::move(builder->model), update_ns, builder->capacity,
                                  static_cast<Algorithm>(algorithm), builder->passing);
  delete builder;
  return simulator;
}

void planner_delete(Simulator* simulator) { delete simulator; }

int32_t planner_add_boxes(Simulator* simulator, int32_t count, int32_t rank, const int64_t* bounds,
                          const uint8_t* present) {
  return simulator->graph.pieces.add(
      {rank, {bounds, bounds + int64_t{2} * rank * count}, {present, present + count}});
}

int32_t planner_add_part(Simulator* simulator, int32_t group, const int64_t* bounds) {
  return simulator->graph.model().groups[group].add(bounds);
}

// `parts`: by group of the operator, by tile.
int32_t planner_add_tiling(Simulator* simulator, int32_t num_tiles, int32_t num_outputs, const int32_t* outputs,
                           int32_t num_inputs, const int32_t* inputs, const int64_t* output_bytes,
                           const int64_t* gradient_bytes, int32_t num_sums, const int32_t* sums,
                           const int64_t* sum_bytes, int32_t num_groups, const int32_t* parts) {
  Tiling tiling;
  tiling.num_tiles = num_tiles;
  tiling.outputs = ints(outputs, num_outputs);
  tiling.inputs = ints(inputs, num_inputs);
  tiling.output_bytes.assign(output_bytes, output_bytes + num_tiles);
  tiling.gradient_bytes.assign(gradient_bytes, gradient_bytes + num_tiles);
  if (num_sums) tiling.sums = ints(sums, num_tiles);
  tiling.sum_bytes.assign(sum_bytes, sum_bytes + num_sums);
  for (int32_t group = 0; group < num_groups; ++group) {
    tiling.parts.push_back(ints(parts + group * num_tiles, num_tiles));
  }
  return simulator->graph.add_tiling(std::move(tiling));
}

// Several operators: by operator its number, its tiling and its number of tiles; then, by tile, the other arrays.
void planner_stage(Simulator* simulator, int32_t count, const int32_t* ops, const int32_t* tilings,
                   const int32_t* num_tiles, const int32_t* devices, const int64_t* forward_ns,
                   const int64_t* backward_ns) {
  for (int32_t number = 0; number < count; ++number) {
    const int32_t tiles = num_tiles[number];
    Change change;
    change.op = ops[number];
    change.placed.tiling = tilings[number];
    change.placed.devices.assign(devices, devices + tiles);
    change.placed.forward_ns.assign(forward_ns, forward_ns + tiles);
    change.placed.backward_ns.assign(backward_ns, backward_ns + tiles);
    simulator->stage(std::move(change));
    devices += tiles;
    forward_ns += tiles;
    backward_ns += tiles;
  }
}

// Returns as `report`; `needed`: the memory, or the time.
int32_t planner_build(Simulator* simulator, int64_t* needed) { return report(simulator->build(), needed); }

int32_t planner_propose(Simulator* simulator, int64_t limit_ns, int64_t* needed) {
  return report(simulator->propose(limit_ns), needed);
}

void planner_accept(Simulator* simulator) { simulator->accept(); }

void planner_undo(Simulator* simulator) { simulator->undo(); }

int64_t planner_makespan(Simulator* simulator) { return simulator->makespan(); }

int64_t planner_num_looked_at(Simulator* simulator) { return simulator->num_looked_at(); }

int32_t planner_num_tasks(Simulator* simulator) {
  simulator->refresh();
  const Tasks& tasks = simulator->graph.tasks;
  int32_t count = 0;
  for (Id id = 0; id < tasks.size(); ++id) count += tasks.is_live(id);
  return count;
}

// Call `planner_num_tasks` first. By task: order, code, ready, start and end; all as 64 bits.
void planner_tasks(Simulator* simulator, int64_t* table) {
  Tasks& tasks = simulator->graph.tasks;
  for (Id id = 0; id < tasks.size(); ++id) {
    if (!tasks.is_live(id)) continue;
    const Task& task = tasks[id];
    Time ready = 0;
    for (const Id earlier : tasks.before(id)) ready = std::max(ready, tasks[earlier].end);
    for (const int64_t number : {static_cast<int64_t>(task.order), static_cast<int64_t>(tasks.details(id).code), ready,
                                 task.start(), task.end}) {
      *table++ = number;
    }
  }
}

// By device: its peak memory.
void planner_peaks(Simulator* simulator, int64_t* bytes) {
  simulator->refresh();
  const std::vector<uint8_t> all(simulator->graph.topology().num_devices(), 1);
  for (const int64_t peak : simulator->memory.peaks(all)) *bytes++ = peak;
}

}  // extern "C"
