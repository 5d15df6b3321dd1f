// A priority queue of tasks whose pops are monotonic: nothing is pushed before the task popped last.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "tasks.h"

namespace bow::planner {

// Tasks in the order of their turns. Time is divided into days of equal length; the days of one year have buckets. The
// tasks of a day are sorted when the day starts, and tasks more than a year ahead wait in a heap.
//
// Brown: Calendar queues, a fast O(1) priority queue implementation for the simulation event set problem, 1988.
class Calendar {
 public:
  explicit Calendar(Tasks& tasks) : tasks_(tasks), days_(kYear, kNone), is_busy_(kYear / 64) {}

  // Choose the length of a day such that about `kPerDay` of `count` entries before `end` fall on each.
  void begin(Time end, size_t count) {
    const auto length = static_cast<uint64_t>(end) * kPerDay / (count + 1);
    shift_ = std::bit_width(length);
    today_ = 0;
    now_.clear();
    next_ = 0;
  }

  // Add a task that is ready.
  void push(Id id) {
    const Task& task = tasks_[id];
    const uint64_t day = static_cast<uint64_t>(task.ready) >> shift_;
    if (day == today_) {
      insert({task.ready, task.order, id});
    } else if (day < today_ + kYear) {
      put(day, id);
    } else {
      later_.push_back({task.ready, task.order, id});
      std::push_heap(later_.begin(), later_.end(), [this](const Entry& a, const Entry& b) { return precedes(b, a); });
    }
  }

  void clear() {
    std::fill(days_.begin(), days_.end(), kNone);
    std::fill(is_busy_.begin(), is_busy_.end(), 0);
    later_.clear();
    now_.clear();
    next_ = 0;
  }

  // Move the next task to `entry`; returns false if there is none.
  bool pop(Entry& entry) {
    if (next_ == now_.size() && !turn_page()) return false;
    entry = now_[next_++];
    return true;
  }

  // One of the tasks of today that follow, to prefetch; or none.
  Id coming(size_t ahead) const { return next_ + ahead < now_.size() ? now_[next_ + ahead].id : kNone; }

 private:
  static constexpr uint64_t kYear = 4096;
  static constexpr uint64_t kPerDay = 2;

  bool precedes(const Entry& a, const Entry& b) const { return tasks_.is_before(a, b); }

  void put(uint64_t day, Id id) {
    const uint64_t place = day % kYear;
    tasks_[id].next = std::exchange(days_[place], id);
    is_busy_[place / 64] |= uint64_t{1} << (place % 64);
  }

  // Usually appended at the end.
  void insert(const Entry& entry) {
    now_.push_back(entry);
    size_t at = now_.size() - 1;
    for (; at > next_ && precedes(entry, now_[at - 1]); --at) now_[at] = now_[at - 1];
    now_[at] = entry;
  }

  bool turn_page() {
    now_.clear();
    next_ = 0;
    uint64_t day = next_busy();
    if (!later_.empty()) day = std::min(day, static_cast<uint64_t>(later_.front().ready) >> shift_);
    if (day == kNoDay) return false;
    today_ = day;
    while (!later_.empty() && static_cast<uint64_t>(later_.front().ready) >> shift_ < today_ + kYear) {
      std::pop_heap(later_.begin(), later_.end(), [this](const Entry& a, const Entry& b) { return precedes(b, a); });
      put(static_cast<uint64_t>(later_.back().ready) >> shift_, later_.back().id);
      later_.pop_back();
    }
    const uint64_t place = today_ % kYear;
    for (Id id = std::exchange(days_[place], kNone); id != kNone; id = tasks_[id].next) {
      now_.push_back({tasks_[id].ready, tasks_[id].order, id});
      __builtin_prefetch(tasks_.after(id).data());
    }
    is_busy_[place / 64] &= ~(uint64_t{1} << (place % 64));
    std::sort(now_.begin(), now_.end(), [this](const Entry& a, const Entry& b) { return precedes(a, b); });
    return true;
  }

  // The first day with entries, starting today.
  uint64_t next_busy() const {
    const uint64_t first = today_ % kYear, words = kYear / 64;
    for (uint64_t step = 0; step <= words; ++step) {
      const uint64_t word = (first / 64 + step) % words;
      uint64_t bits = is_busy_[word];
      if (step == 0) bits &= ~uint64_t{0} << (first % 64);
      if (step == words) bits &= ~(~uint64_t{0} << (first % 64));
      if (!bits) continue;
      const uint64_t place = 64 * word + static_cast<uint64_t>(std::countr_zero(bits));
      return today_ + (place + kYear - first) % kYear;
    }
    return kNoDay;
  }

  static constexpr uint64_t kNoDay = ~uint64_t{0};

  Tasks& tasks_;
  int shift_ = 0;
  uint64_t today_ = 0;
  std::vector<Entry> now_;  // today's, sorted; those before `next_` were popped
  size_t next_ = 0;
  std::vector<Id> days_;           // of a year starting today, by day modulo its length: the first task
  std::vector<uint64_t> is_busy_;  // a bit for each day
  std::vector<Entry> later_;       // a heap
};

}  // namespace bow::planner
