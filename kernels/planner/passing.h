// Simulation with overtaking: a task that can start passes earlier tasks that wait for another place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "tasks.h"

namespace bow::planner {

// Whenever tasks end, the ready tasks are visited in the order of their turns, and each whose places are all free
// starts. Any other waits at the first of its busy places, and is visited again when that is free.
class Passing {
  // std::priority_queue pops the greatest: the one with the earliest turn.
  struct Later {
    const Tasks* tasks;
    bool operator()(const Entry& one, const Entry& other) const { return tasks->is_before(other, one); }
  };
  using Waiting = std::priority_queue<Entry, std::vector<Entry>, Later>;

 public:
  Passing(Tasks& tasks, int num_places)
      : tasks_(tasks), is_later_{&tasks}, is_busy_(num_places), waiting_(num_places, Waiting{is_later_}) {}

  // As Replay::run.
  Time run(Time limit) {
    begin();
    Time now = 0, latest = 0;
    for (;;) {
      while (!ready_.empty() || !freed_.empty()) {
        Waiting* first = ready_.empty() ? nullptr : &ready_;
        for (const int32_t place : freed_) {
          Waiting& waiting = waiting_[place];
          if (!waiting.empty() && (!first || is_later_(first->top(), waiting.top()))) first = &waiting;
        }
        if (!first) break;
        const Entry turn = first->top();
        first->pop();
        if (start(turn, now, latest) && latest > limit) return latest;
        std::erase_if(freed_, [this](int32_t place) { return is_busy_[place]; });
      }
      freed_.clear();
      if (ends_.empty()) return latest;
      now = ends_.top().first;
      latest = std::max(latest, now);
      while (!ends_.empty() && ends_.top().first == now) {
        const Id id = ends_.top().second;
        ends_.pop();
        for (const int32_t place : tasks_.places(id)) {
          is_busy_[place] = 0;
          freed_.push_back(place);
        }
        finish(id, now);
      }
    }
  }

 private:
  using End = std::pair<Time, Id>;

  void begin() {
    ahead_ = tasks_.load();
    std::fill(is_busy_.begin(), is_busy_.end(), 0);
    for (Waiting& waiting : waiting_) waiting = Waiting{is_later_};
    ready_ = Waiting{is_later_};
    ends_ = {};
    freed_.clear();
    pending_.assign(tasks_.size(), 0);
    std::vector<Id> sources;
    for (Id id = 0; id < tasks_.size(); ++id) {
      if (!tasks_.is_live(id)) continue;
      pending_[id] = tasks_[id].waits;
      if (!pending_[id]) sources.push_back(id);
    }
    for (const Id id : sources) arrive(id, 0);
  }

  void arrive(Id id, Time now) {
    if (tasks_[id].num_places) {
      ready_.push({now, tasks_[id].order, id});
    } else {
      finish(id, now);
    }
  }

  void finish(Id id, Time now) {
    tasks_[id].end = now;
    for (const Id later : tasks_.after(id)) {
      if (!--pending_[later]) arrive(later, now);
    }
  }

  // Start a task if its places are free; returns whether it started.
  bool start(const Entry& turn, Time now, Time& latest) {
    const auto places = tasks_.places(turn.id);
    for (const int32_t place : places) {
      if (!is_busy_[place]) continue;
      waiting_[place].push(turn);
      return false;
    }
    const Time duration = tasks_[turn.id].duration;
    for (const int32_t place : places) {
      is_busy_[place] = 1;
      latest = std::max(latest, now + ahead_[place]);
      ahead_[place] -= duration;
    }
    ends_.emplace(now + duration, turn.id);
    return true;
  }

  Tasks& tasks_;
  Later is_later_;
  std::vector<Time> ahead_;  // by place: total duration of the tasks that have not started
  std::vector<uint8_t> is_busy_;
  std::vector<Waiting> waiting_;  // by place
  Waiting ready_{is_later_};
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::vector<int32_t> freed_;
  std::vector<int32_t> pending_;  // by task: number of predecessors that have not ended
};

}  // namespace bow::planner
