// When every task runs, worked out from nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "calendar.h"
#include "tasks.h"

namespace bow::planner {

// Every device and every channel takes tasks in the order of their turns: (ready time, rank, tile, device, code). A
// task starts when it is ready and everything that it occupies is free. What a task waits for has a lower turn than the
// task itself, so tasks get their times in the order of their turns: bow/planning/simulator/python_simulator.py does the same.
//
// Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, Algorithm 1.
class Replay {
 public:
  Replay(Tasks& tasks, int num_places) : tasks_(tasks), calendar_(tasks), places_(num_places) {}

  // When the last task is over; or, once it is clear that it is over after `limit`, a time that it takes at least.
  // `visit` is called with each task's turn, in order; the task has its end then.
  template <typename Visit>
  Time run(Time limit, Visit visit) {
    begin();
    Time latest = 0;
    do {
      while (!idle_.empty()) {  // they take no time and wait for no place
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

  // Once the tasks' changes are undone.
  void rollback() {
    for (const Id id : changed_) tasks_[id].pending = tasks_[id].waits;
  }

 private:
  static constexpr size_t kAhead = 2;
  static constexpr int32_t kStarted = -1;

  struct Place {
    Time free = 0;   // from when on
    Time ahead = 0;  // how long all takes that has had no turn
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
    // As it has to be when the next run begins: it is not read any more in this one.
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
  std::vector<Id> idle_;  // ready, and occupy nothing
  std::vector<Place> places_;
  std::vector<Id> changed_;
  Time length_ = 0;  // of the last run that was not stopped
  bool was_stopped_ = false;
};

}  // namespace bow::planner
