// Full simulation: compute the times of all tasks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "calendar.h"
#include "tasks.h"

namespace bow::planner {

// Every device and every channel processes tasks in the order of their turns: (ready time, rank, tile, device, code). A
// task starts when it is ready and all its places are free. Predecessors have lower turns than the task itself, so
// times are computed in the order of turns, as in bow/planning/simulator/python_simulator.py.
//
// Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, Algorithm 1.
class Replay {
 public:
  Replay(Tasks& tasks, int num_places) : tasks_(tasks), calendar_(tasks), places_(num_places) {}

  // Return the makespan; or, as soon as it is known to exceed `limit`, a lower bound of it.
  // `visit` is called with each task's turn, in order, after its end was computed.
  template <typename Visit>
  Time run(Time limit, Visit visit) {
    begin();
    Time latest = 0;
    do {
      while (!idle_.empty()) {  // tasks without duration and places
        const Id id = idle_.back();
        idle_.pop_back();
        const Time ready = tasks_[id].ready;
        finish(id, ready);
        visit(Entry{ready, tasks_[id].order, id});
      }
      Entry turn;
      if (!calendar_.pop(turn)) return length_ = latest;
      prefetch(calendar_.coming(kAhead));
      Time start = turn.ready;
      const Time duration = tasks_[turn.id].duration;
      const std::span<const int32_t> places = tasks_.places(turn.id);
      for (const int32_t place : places) start = std::max(start, places_[place].free);
      for (const int32_t number : places) {
        Place& place = places_[number];
        latest = std::max(latest, start + place.ahead);
        place = {start + duration, place.ahead - duration};
      }
      finish(turn.id, start + duration);
      visit(turn);
    } while (latest <= limit);
    stop();
    return latest;
  }

  // Call after `tasks.rollback`.
  void rollback() {
    for (const Id id : changed_) tasks_[id].pending = tasks_[id].waits;
  }

 private:
  static constexpr size_t kAhead = 2;
  static constexpr int32_t kStarted = -1;

  struct Place {
    Time free = 0;   // from this time on
    Time ahead = 0;  // total duration of the tasks whose turn has not come
  };

  void begin() {
    for (size_t place = 0; place < places_.size(); ++place) places_[place] = {0, tasks_.load()[place]};
    calendar_.begin(length_, static_cast<size_t>(tasks_.size()));
    changed_ = tasks_.changed();
    if (std::exchange(was_stopped_, false)) {
      for (Id id = 0; id < tasks_.size(); ++id) reset(id);
    }
    for (const Id id : tasks_.created()) reset(id);
    for (const Id id : changed_) reset(id);
    tasks_.for_sources([this](Id id) {
      if (std::exchange(tasks_[id].pending, kStarted) != kStarted) arrive(id);
    });
  }

  void reset(Id id) {
    tasks_[id].ready = 0;
    tasks_[id].pending = tasks_[id].waits;
  }

  void arrive(Id id) {
    if (tasks_[id].num_places) {
      calendar_.push(id);
    } else {
      idle_.push_back(id);
    }
  }

  void finish(Id id, Time end) {
    Task& task = tasks_[id];
    task.end = end;
    // Reset for the next run; not read again in this one.
    task.ready = 0;
    task.pending = task.waits;
    for (const Id later : tasks_.after(id)) {
      Task& next = tasks_[later];
      next.ready = std::max(next.ready, end);
      if (!--next.pending) arrive(later);
    }
  }

  void stop() {
    was_stopped_ = true;
    calendar_.clear();
    idle_.clear();
  }

  void prefetch(Id id) {
    if (id == kNone) return;
    for (const Id later : tasks_.after(id)) __builtin_prefetch(&tasks_[later]);
  }

  Tasks& tasks_;
  Calendar calendar_;
  std::vector<Id> idle_;  // ready, without places
  std::vector<Place> places_;
  std::vector<Id> changed_;
  Time length_ = 0;  // makespan of the last completed run
  bool was_stopped_ = false;
};

}  // namespace bow::planner
