// Peak memory of a partition by device; bow/planning/simulator/python_simulator.py documents which tensors count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "task_graph.h"

namespace bow::planner {

class Memory {
 public:
  explicit Memory(TaskGraph& graph) : graph_(graph), tasks_(graph.tasks) {}

  // The sum of all results: an upper bound of the peak that does not need the timeline.
  int64_t bound(int device) const { return graph_.lasting_bytes(device) + tasks_.memory()[device]; }

  // By device; 0 for devices that are not asked for.
  std::vector<int64_t> peaks(const std::vector<uint8_t>& is_asked_for) {
    std::vector<std::vector<std::pair<Time, int64_t>>> changes(is_asked_for.size());
    for (Id id = 0; id < tasks_.size(); ++id) {
      if (!tasks_.is_live(id)) continue;
      const Details& details = tasks_.details(id);
      if (!details.memory_bytes || !is_asked_for[details.memory_device]) continue;
      const Time start = beginning(id), end = ending(id);
      if (end <= start) continue;
      changes[details.memory_device].emplace_back(start, details.memory_bytes);
      changes[details.memory_device].emplace_back(end, -details.memory_bytes);
    }
    std::vector<int64_t> peaks(is_asked_for.size());
    for (size_t device = 0; device < peaks.size(); ++device) {
      if (!is_asked_for[device]) continue;
      peaks[device] = highest(graph_.lasting_bytes(static_cast<int>(device)), changes[device]);
    }
    return peaks;
  }

 private:
  static int64_t highest(int64_t level, std::vector<std::pair<Time, int64_t>>& changes) {
    std::sort(changes.begin(), changes.end());  // at equal times, frees come before allocations
    int64_t peak = level;
    for (const auto& [at, change] : changes) peak = std::max(peak, level += change);
    return peak;
  }

  Time beginning(Id id) {
    const Task& task = tasks_[id];
    Time start = task.start();
    if (tasks_.kind(id) != Kind::kGradient && tasks_.kind(id) != Kind::kBackward) return start;
    for (const Id earlier : tasks_.before(id)) {
      if (tasks_.kind(earlier) != Kind::kForward) start = std::min(start, tasks_[earlier].start());
    }
    return start;
  }

  Time ending(Id id) {
    if (tasks_.kind(id) != Kind::kForward && tasks_.kind(id) != Kind::kTransfer) return tasks_[id].end;
    return std::max(used_until(id), read_until(id));
  }

  // When a task no longer needs its inputs and outputs.
  Time used_until(Id id) {
    const Id partner = tasks_.kind(id) == Kind::kForward ? tasks_.details(id).partner : kNone;
    return tasks_[partner == kNone ? id : partner].end;
  }

  Time read_until(Id id) {
    Time end = 0;
    for (const Id later : tasks_.after(id)) {
      const Kind kind = tasks_.kind(later);
      if (kind == Kind::kForwardSum) end = std::max(end, read_until(later));
      if (kind == Kind::kForward || kind == Kind::kTransfer) end = std::max(end, used_until(later));
    }
    return end;
  }

  TaskGraph& graph_;
  Tasks& tasks_;
};

}  // namespace bow::planner
