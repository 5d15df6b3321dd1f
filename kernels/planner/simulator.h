// Simulate a partition, and proposals to change it that are accepted or undone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "delta.h"
#include "memory.h"
#include "passing.h"
#include "replay.h"
#include "task_graph.h"

namespace bow::planner {

// The outcome of a proposal.
struct Outcome {
  enum { kFits, kTooLarge, kTooSlow } what = kFits;
  int device = 0;      // the device whose memory is too small
  int64_t needed = 0;  // the memory it needs; or, if too slow, a lower bound of the makespan
};

// Simulation algorithms; all compute the same times.
enum class Algorithm {
  kDelta,        // edits the tasks, and recomputes the times that may have changed
  kIncremental,  // edits the tasks, and recomputes all times
  kFull          // rebuilds all tasks and recomputes all times
};

class Simulator {
 public:
  // With overtaking, changes do not determine which times are affected: `kDelta` becomes `kIncremental`.
  Simulator(Topology topology, Model model, UpdateTime update_time, std::vector<int64_t> capacity, Algorithm algorithm,
            bool passes)
      : graph(std::move(topology), std::move(model), std::move(update_time)),
        memory(graph),
        algorithm_(passes && algorithm == Algorithm::kDelta ? Algorithm::kIncremental : algorithm),
        passes_(passes),
        passing_(graph.tasks, graph.topology().num_places()),
        replay_(graph.tasks, graph.topology().num_places()),
        delta_(graph.tasks, graph.topology().num_places()),
        capacity_(std::move(capacity)) {}

  Simulator(const Simulator&) = delete;

  TaskGraph graph;
  Memory memory;

  Time makespan() const { return makespan_; }
  int64_t num_looked_at() const { return num_looked_at_; }

  // Set the split and placement of an operator for the next `build` or `propose`.
  void stage(Change change) { staged_.push_back(std::move(change)); }

  // Call after all operators were staged.
  Outcome build() {
    rebuild(std::exchange(staged_, {}));
    return check_memory();
  }

  // Simulate the staged changes. If the proposal fits and is fast enough, `accept` or `undo` follows; otherwise it has
  // been undone.
  Outcome propose(Time limit) {
    makespan_before_ = makespan_;
    num_looked_at_ = 0;
    if (algorithm_ == Algorithm::kFull) {
      refill();
    } else {
      graph.apply(std::exchange(staged_, {}));
      is_edited_ = true;
      if (const Time least = graph.tasks.least_time(); least > limit) return too_slow(least);
      if (algorithm_ == Algorithm::kDelta) {
        is_updated_ = true;
        const bool is_fast = delta_.update(limit);
        num_looked_at_ = delta_.num_looked_at();
        if (!is_fast) return too_slow(delta_.exceeding());
        makespan_ = delta_.makespan();
      } else {
        makespan_ = replay(limit, [](const Entry&) {});
        if (makespan_ > limit) return too_slow(makespan_);
      }
    }
    const Outcome outcome = check_memory();
    if (outcome.what != Outcome::kFits) undo();
    return outcome;
  }

  void accept() {
    if (is_updated_) delta_.commit();
    if (is_edited_) graph.commit();
    is_edited_ = is_updated_ = false;
  }

  // Recomputed times (with the full algorithm also tasks) remain those of the proposal until `refresh` is called.
  void undo() {
    if (is_updated_) delta_.rollback();
    if (is_edited_) graph.rollback();
    if (algorithm_ == Algorithm::kIncremental) replay_.rollback();
    is_stale_ = algorithm_ != Algorithm::kDelta;
    is_edited_ = is_updated_ = false;
    makespan_ = makespan_before_;
  }

  // Call before tasks or times are read.
  void refresh() {
    if (!std::exchange(is_stale_, false)) return;
    if (algorithm_ == Algorithm::kFull) {
      rebuild(all(before_));
    } else {
      replay(kNever, [](const Entry&) {});
    }
  }

 private:
  void rebuild(std::vector<Change> changes) {
    graph.clear();
    graph.apply(std::move(changes));
    if (algorithm_ == Algorithm::kDelta) {
      std::vector<Entry> turns;
      makespan_ = replay(kNever, [&](const Entry& turn) { turns.push_back(turn); });
      delta_.adopt(turns);
    } else {
      makespan_ = replay(kNever, [](const Entry&) {});
    }
    graph.commit();
  }

  // The full algorithm: restore all operators but the staged ones.
  void refill() {
    if (!is_stale_) before_ = graph.placements();
    is_stale_ = false;
    std::vector<Change> changes = all(before_);
    for (Change& change : staged_) changes[change.op] = std::move(change);
    staged_.clear();
    rebuild(std::move(changes));
  }

  template <typename Visit>
  Time replay(Time limit, Visit visit) {
    num_looked_at_ = graph.tasks.num_live();
    is_stale_ = false;
    return passes_ ? passing_.run(limit) : replay_.run(limit, visit);
  }

  Outcome too_slow(Time least) {
    undo();
    return {Outcome::kTooSlow, 0, least};
  }

  static std::vector<Change> all(const std::vector<Placed>& placed) {
    std::vector<Change> changes;
    for (size_t op = 0; op < placed.size(); ++op) changes.push_back({static_cast<int>(op), placed[op]});
    return changes;
  }

  Outcome check_memory() {
    std::vector<uint8_t> may_exceed;
    for (int device = 0; device < graph.topology().num_devices(); ++device) {
      may_exceed.push_back(memory.bound(device) > capacity_[device]);
    }
    if (std::none_of(may_exceed.begin(), may_exceed.end(), [](uint8_t may) { return may; })) return {};
    const std::vector<int64_t> peaks = memory.peaks(may_exceed);
    for (int device = 0; device < graph.topology().num_devices(); ++device) {
      if (peaks[device] > capacity_[device]) return {Outcome::kTooLarge, device, peaks[device]};
    }
    return {};
  }

  Algorithm algorithm_;
  bool passes_;
  Passing passing_;
  Replay replay_;
  Delta delta_;
  std::vector<int64_t> capacity_;  // by device
  std::vector<Change> staged_;
  std::vector<Placed> before_;  // full algorithm: the partition that was accepted last
  Time makespan_ = 0;
  Time makespan_before_ = 0;
  int64_t num_looked_at_ = 0;
  bool is_edited_ = false;   // whether the tasks are those of a proposal
  bool is_updated_ = false;  // whether their times were computed by `delta_`
  bool is_stale_ = false;    // whether times, or all tasks, are those of an undone proposal
};

}  // namespace bow::planner
