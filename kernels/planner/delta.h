// Incremental simulation: recompute the times of the tasks that a change affects.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tasks.h"

namespace bow::planner {

// Computes the same timeline as replay.h, also in the order of the turns, but visits only tasks whose times may have
// changed. A task whose turn has become invalid leaves its queues at its old turn, has no time until all its
// predecessors have one, and is requeued at its new turn. Therefore all tasks with lower turns are final, and the last
// task that occupies a place before a turn is known.
//
// Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, Algorithm 2.
class Delta {
 public:
  Delta(Tasks& tasks, int num_places) : tasks_(tasks), queues_(num_places) {}

  Time makespan() const { return makespan_; }

  // Take over the times of a full simulation.
  void adopt(const std::vector<Entry>& sequence) {
    for (Queue& queue : queues_) queue.entries.clear();
    makespan_ = 0;
    for (const Entry& entry : sequence) {
      Task& task = tasks_[entry.id];
      task.ready = entry.ready;
      task.pending = 0;
      task.set(kPlaced);
      for (const int32_t place : tasks_.places(entry.id)) queues_[place].entries.push_back(entry);
      makespan_ = std::max(makespan_, task.end);
    }
  }

  // Simulate the changes in `tasks`. `commit` or `rollback` follows. If a task ends after `limit` (`exceeding` is its
  // end), the simulation stops and `rollback` follows.
  bool update(Time limit) {
    makespan_before_ = makespan_;
    heap_.clear();
    num_looked_at_ = 0;
    exceeding_ = 0;
    begin();
    while (!heap_.empty()) {
      now_ = pop_entry();
      Task& task = tasks_[now_.id];
      // A stale heap entry: the task was queued again.
      if (!task.has(kQueued) || tasks_.details(now_.id).queued != now_.ready) continue;
      task.unset(kQueued);
      look_at(now_.id, task);
      ++num_looked_at_;
      if (exceeding_ > limit) {
        stop();
        return false;
      }
    }
    makespan_ = latest();
    return true;
  }

  Time exceeding() const { return exceeding_; }

  int64_t num_looked_at() const { return num_looked_at_; }

  // Call before `tasks.commit`.
  void commit() {
    for (const int32_t place : touched_) merge(queues_[place]);
    end();
  }

  // Call before `tasks.rollback`.
  void rollback() {
    for (const Logged& logged : log_) {
      Task& task = tasks_[logged.id];
      task.ready = logged.ready;
      task.end = logged.end;
      task.pending = 0;
      task.set(kPlaced);
    }
    makespan_ = makespan_before_;
    end();
  }

 private:
  struct Queue {
    std::vector<Entry> entries;  // by turn: the order before the proposal
    std::vector<Id> inserted;    // by turn: tasks that were added, or changed their turn
    size_t first = 0;            // first entry that the proposal affects
    bool is_touched = false;
    bool is_open = false;  // whether the proposal has reached it; then:
    size_t next = 0;       // first entry whose turn has not been reached
    Id last = kNone;       // the last valid entry before it
  };

  struct Logged {
    Id id;
    Time ready, end;
  };

  // Reset all waiting tasks: those in the heap, in the journal, and those whose predecessors changed.
  void stop() {
    for (const Entry& entry : heap_) {
      tasks_[entry.id].unset(kQueued);
      tasks_[entry.id].pending = 0;
    }
    heap_.clear();
    for (const Id id : tasks_.changed()) tasks_[id].pending = 0;
  }

  // --- order ---

  bool before(const Entry& one, const Entry& other) const { return tasks_.is_before(one, other); }

  Entry entry(Id id) const { return {tasks_[id].ready, tasks_[id].order, id}; }

  void push_entry(Id id, Time ready) {
    heap_.push_back({ready, tasks_[id].order, id});
    std::push_heap(heap_.begin(), heap_.end(), [this](const Entry& a, const Entry& b) { return before(b, a); });
  }

  Entry pop_entry() {
    std::pop_heap(heap_.begin(), heap_.end(), [this](const Entry& a, const Entry& b) { return before(b, a); });
    const Entry entry = heap_.back();
    heap_.pop_back();
    return entry;
  }

  // Visit a task at the turn with this ready time, or earlier.
  void queue(Id id, Time ready) {
    Task& task = tasks_[id];
    Time& queued = tasks_.details(id).queued;
    if (task.has(kQueued) && queued <= ready) return;
    queued = ready;
    task.set(kQueued);
    push_entry(id, ready);
  }

  // --- what changed ---

  void begin() {
    for (const Id id : tasks_.killed()) {
      for (const int32_t place : tasks_.places(id)) leave(place, entry(id));
    }
    for (const Id id : tasks_.created()) count_pending(id);
    for (const Id id : tasks_.changed()) count_pending(id);
    for (const Id id : tasks_.created()) {
      Task& task = tasks_[id];
      if (!task.pending) queue(id, task.ready = ready_of(id));
    }
    for (const Id id : tasks_.changed()) {
      const Task& task = tasks_[id];
      if (task.has(kDead)) continue;
      const Time ready = task.pending ? task.ready : ready_of(id);
      if (task.pending || ready != task.ready) queue(id, std::min(ready, task.ready));
    }
  }

  void count_pending(Id id) {
    Task& task = tasks_[id];
    task.pending = 0;
    for (const Id earlier : tasks_.before(id)) task.pending += !tasks_[earlier].has(kPlaced);
  }

  Time ready_of(Id id) {
    Time ready = 0;
    for (const Id earlier : tasks_.before(id)) ready = std::max(ready, tasks_[earlier].end);
    return ready;
  }

  void look_at(Id id, Task& task) {
    if (task.pending) {
      if (task.has(kPlaced)) displace(id, task);
      return;  // queued again when all predecessors have a time
    }
    const Time ready = ready_of(id);
    if (!task.has(kPlaced)) {
      task.ready = ready;
      if (ready > now_.ready) return queue(id, ready);
      return place(id, task, true);
    }
    if (ready > task.ready) {  // its turn moves back; now is its old turn, or even earlier
      if (now_.ready < task.ready) return queue(id, task.ready);
      displace(id, task);
      task.ready = ready;
      return queue(id, ready);
    }
    if (ready > now_.ready) return queue(id, ready);
    const bool moves = ready < task.ready;
    if (moves) {
      log(id, task);
      for (const int32_t place : tasks_.places(id)) {
        touch(place);
        queue_next(queues_[place], entry(id));
      }
      task.ready = ready;
    }
    place(id, task, moves);
  }

  // Remove a task from its queues: it has no time for now.
  void displace(Id id, Task& task) {
    log(id, task);
    task.unset(kPlaced);
    for (const int32_t place : tasks_.places(id)) {
      touch(place);
      queue_next(queues_[place], entry(id));
    }
    for (const Id later : tasks_.after(id)) {
      Task& next = tasks_[later];
      ++next.pending;
      if (next.has(kPlaced)) queue(later, next.ready);
    }
  }

  // Compute the times of the task whose turn it is.
  void place(Id id, Task& task, bool moves) {
    const bool had_time = task.has(kPlaced);
    Time start = task.ready;
    for (const int32_t place : tasks_.places(id)) {
      touch(place);
      start = std::max(start, free_at(queues_[place]));
    }
    if (had_time && !moves && start == task.start()) return;
    log(id, task);
    const Time old_end = task.end;
    task.end = start + task.duration;
    exceeding_ = std::max(exceeding_, task.end);
    task.set(kPlaced);
    if (moves) {
      task.set(kInserted);
      for (const int32_t place : tasks_.places(id)) queues_[place].inserted.push_back(id);
    }
    for (const int32_t place : tasks_.places(id)) queue_next(queues_[place], now_);
    if (!had_time) {
      for (const Id later : tasks_.after(id)) arrive(later);
    } else if (task.end != old_end) {
      for (const Id later : tasks_.after(id)) shift(later, old_end, task.end);
    }
  }

  // A predecessor has a time again.
  void arrive(Id id) {
    Task& task = tasks_[id];
    if (--task.pending) return;
    const Time ready = ready_of(id);
    if (task.has(kPlaced)) return queue(id, std::min(ready, task.ready));
    task.ready = ready;
    queue(id, ready);
  }

  // A predecessor's time changed.
  void shift(Id id, Time old_end, Time end) {
    Task& task = tasks_[id];
    if (task.pending) return;  // it will be visited anyway
    if (!task.has(kPlaced)) return queue(id, ready_of(id));
    if (end > task.ready) {
      queue(id, task.ready);
    } else if (old_end == task.ready || task.has(kQueued)) {  // it may be ready earlier than queued
      queue(id, std::min(ready_of(id), task.ready));
    }
  }

  // --- queues ---

  bool is_valid(const Entry& entry) const {
    const Task& task = tasks_[entry.id];
    return (task.flags & (kPlaced | kDead | kInserted)) == kPlaced && task.ready == entry.ready;
  }

  size_t position(const Queue& queue, size_t from, const Entry& key) const {
    const auto found = std::lower_bound(queue.entries.begin() + static_cast<std::ptrdiff_t>(from), queue.entries.end(),
                                        key, [this](const Entry& a, const Entry& b) { return before(a, b); });
    return static_cast<size_t>(found - queue.entries.begin());
  }

  // Remove a dead task from a queue; its turn may not have been reached yet.
  void leave(int32_t place, const Entry& key) {
    Queue& queue = queues_[place];
    const size_t at = position(queue, 0, key);
    queue.first = queue.is_touched ? std::min(queue.first, at) : at;
    if (!std::exchange(queue.is_touched, true)) touched_.push_back(place);
    queue_from(queue, at + 1);
  }

  // Advance the queue to the current turn.
  void touch(int32_t place) {
    Queue& queue = queues_[place];
    if (std::exchange(queue.is_open, true)) {
      while (queue.next < queue.entries.size() && before(queue.entries[queue.next], now_)) {
        if (is_valid(queue.entries[queue.next])) queue.last = queue.entries[queue.next].id;
        ++queue.next;
      }
      return;
    }
    queue.next = position(queue, 0, now_);
    queue.first = queue.is_touched ? std::min(queue.first, queue.next) : queue.next;
    if (!std::exchange(queue.is_touched, true)) touched_.push_back(place);
    size_t at = queue.next;
    while (at && !is_valid(queue.entries[at - 1])) --at;
    queue.last = at ? queue.entries[at - 1].id : kNone;
  }

  // When a place becomes free for the current task.
  Time free_at(const Queue& queue) const {
    Time free = queue.last == kNone ? 0 : tasks_[queue.last].end;
    if (!queue.inserted.empty()) free = std::max(free, tasks_[queue.inserted.back()].end);
    return free;
  }

  // Visit the task that follows a turn in the queue.
  void queue_next(const Queue& queue, const Entry& key) {
    size_t at = queue.next;
    if (at < queue.entries.size() && before(queue.entries[at], key)) at = position(queue, at, key);
    if (at < queue.entries.size() && queue.entries[at].id == key.id) ++at;
    queue_from(queue, at);
  }

  void queue_from(const Queue& queue, size_t at) {
    while (at < queue.entries.size() && !is_valid(queue.entries[at])) ++at;
    if (at < queue.entries.size()) this->queue(queue.entries[at].id, queue.entries[at].ready);
  }

  // Merge the inserted tasks into the old order.
  void merge(Queue& queue) {
    merged_.clear();
    size_t at = queue.first;
    const auto take_until = [&](const Entry* key) {
      for (; at < queue.entries.size() && (!key || before(queue.entries[at], *key)); ++at) {
        if (is_valid(queue.entries[at])) merged_.push_back(queue.entries[at]);
      }
    };
    for (const Id id : queue.inserted) {
      const Entry key = entry(id);
      take_until(&key);
      merged_.push_back(key);
    }
    take_until(nullptr);
    queue.entries.resize(queue.first);
    queue.entries.insert(queue.entries.end(), merged_.begin(), merged_.end());
  }

  Time latest() const {
    Time latest = 0;
    for (const Queue& queue : queues_) {
      size_t at = queue.entries.size();
      if (queue.is_touched) {
        if (!queue.inserted.empty()) latest = std::max(latest, tasks_[queue.inserted.back()].end);
        while (at && !is_valid(queue.entries[at - 1])) --at;
      }
      if (at) latest = std::max(latest, tasks_[queue.entries[at - 1].id].end);
    }
    return latest;
  }

  // --- journal ---

  void log(Id id, Task& task) {
    if (task.flags & (kLogged | kFresh)) return;
    task.set(kLogged);
    log_.push_back({id, task.ready, task.end});
  }

  void end() {
    for (const Logged& logged : log_) tasks_[logged.id].unset(kLogged);
    for (const int32_t place : touched_) {
      Queue& queue = queues_[place];
      for (const Id id : queue.inserted) tasks_[id].unset(kInserted);
      queue.inserted.clear();
      queue.is_touched = queue.is_open = false;
    }
    log_.clear();
    touched_.clear();
  }

  Tasks& tasks_;
  std::vector<Queue> queues_;  // by place
  std::vector<Entry> heap_;
  Entry now_{};
  Time makespan_ = 0;
  Time makespan_before_ = 0;
  Time exceeding_ = 0;  // latest end computed since the last commit or rollback
  int64_t num_looked_at_ = 0;
  std::vector<int32_t> touched_;
  std::vector<Logged> log_;
  std::vector<Entry> merged_;
};

}  // namespace bow::planner
