// Tasks and their dependencies, with a journal to undo changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lists.h"
#include "topology.h"

namespace bow::planner {

using Id = int32_t;
constexpr Id kNone = -1;

enum class Kind : uint8_t {
  kForward,
  kForwardSum,
  kTransfer,
  kGradient,
  kBackward,
  kBackwardSum,
  kGather,
  kReduction,
  kUpdate,
  kAveraging
};

enum Flag : uint16_t {
  kDead = 1,        // removed by the proposal
  kFresh = 2,       // created by the proposal
  kPlaced = 4,      // has a time, and a position in its queues
  kQueued = 8,      // waits to be visited
  kInserted = 16,   // has a new position in its queues
  kChanged = 32,    // its predecessors changed
  kLogged = 64,     // its previous time is in the journal
  kCutBefore = 128,  // in the list of tasks with edges to dead tasks
  kCutAfter = 256,
  kSavedBefore = 512,  // its list of edges is in the journal
  kSavedAfter = 1024,
  kSum = 2048,     // it has its own list of places
  kListed = 4096,  // in the list of sources
};

// The fields that the simulation accesses most, in one cache line.
struct alignas(64) Task {
  Time ready = 0;      // when all predecessors have ended, if known
  Time end = 0;
  Time duration = 0;
  uint64_t order = 0;  // rank, tile, device: among tasks that are ready at the same time
  int32_t pending = 0;  // number of predecessors without a time
  int32_t waits = 0;    // number of predecessors
  List after;           // successors
  uint32_t at = 0;      // start of its places, in the places of all routes or in its own list
  uint16_t num_places = 0;
  uint16_t flags = 0;
  Id next = kNone;  // in the calendar: the next task of the same day

  Time start() const { return end - duration; }
  bool has(Flag flag) const { return flags & flag; }
  void set(Flag flag) { flags |= flag; }
  void unset(Flag flag) { flags &= static_cast<uint16_t>(~flag); }
};
static_assert(sizeof(Task) == 64);

// The other fields.
struct Details {
  Kind kind = Kind::kForward;
  List before;       // predecessors
  List members;      // places of a sum
  uint64_t code = 0;  // orders tasks with the same ready time and order
  Time queued = 0;    // the ready time with which it is queued
  Id partner = kNone;  // forward and backward pass of a tile, or transfer and its gradient, refer to each other
  int32_t memory_device = 0;
  int64_t memory_bytes = 0;
};

// A task's turn: its sort key.
struct Entry {
  Time ready = 0;
  uint64_t order = 0;
  Id id = kNone;
};

class Tasks {
 public:
  explicit Tasks(const Topology& topology)
      : topology_(topology), load_(topology.num_places()), memory_(topology.num_devices()) {}

  Task& operator[](Id id) { return tasks_[id]; }
  const Task& operator[](Id id) const { return tasks_[id]; }
  Details& details(Id id) { return details_[id]; }
  const Details& details(Id id) const { return details_[id]; }
  Id size() const { return static_cast<Id>(tasks_.size()); }
  Kind kind(Id id) const { return details_[id].kind; }
  int64_t num_live() const { return static_cast<int64_t>(tasks_.size() - free_.size() - killed_.size()); }
  bool is_live(Id id) const { return is_used_[id] && !tasks_[id].has(kDead); }

  std::span<int32_t> before(Id id) { return before_.of(details_[id].before); }
  std::span<int32_t> after(Id id) { return after_.of(tasks_[id].after); }
  std::span<const int32_t> places(Id id) {
    const Task& task = tasks_[id];
    return {(task.has(kSum) ? members_.numbers() : topology_.places()) + task.at, task.num_places};
  }

  bool is_before(const Entry& one, const Entry& other) const {
    if (one.ready != other.ready) return one.ready < other.ready;
    if (one.order != other.order) return one.order < other.order;
    return details_[one.id].code < details_[other.id].code;
  }

  // Visit all tasks without predecessors; some twice.
  template <typename Visit>
  void for_sources(Visit visit) {
    for (const std::vector<Id>* ids : {&sources_, &created_, &changed_}) {
      for (const Id id : *ids) {
        if (is_source(id)) visit(id);
      }
    }
  }

  // By place: total duration of its tasks. By device: total size of all results that are ever stored there.
  const std::vector<Time>& load() const { return load_; }
  const std::vector<int64_t>& memory() const { return memory_; }

  // A lower bound of the makespan.
  Time least_time() const { return *std::max_element(load_.begin(), load_.end()); }

  const std::vector<Id>& created() const { return created_; }
  const std::vector<Id>& killed() const { return killed_; }
  const std::vector<Id>& changed() const { return changed_; }

  Id create(Kind kind, uint64_t order, uint64_t code, Time duration) {
    Id id;
    if (free_.empty()) {
      id = size();
      tasks_.emplace_back();
      details_.emplace_back();
      is_used_.push_back(1);
    } else {
      id = free_.back();
      free_.pop_back();
      tasks_[id] = Task{};
      details_[id] = Details{};
      is_used_[id] = 1;
    }
    Task& task = tasks_[id];
    task.order = order;
    task.duration = duration;
    task.set(kFresh);
    details_[id].kind = kind;
    details_[id].code = code;
    created_.push_back(id);
    return id;
  }

  void occupy_device(Id id, int device) {
    tasks_[id].at = static_cast<uint32_t>(device);  // devices come first among all places
    tasks_[id].num_places = 1;
    count(id, 1);
  }

  void occupy_route(Id id, const Route& route) {
    tasks_[id].at = route.at;
    tasks_[id].num_places = static_cast<uint16_t>(route.size);
    count(id, 1);
  }

  void occupy(Id id, std::span<const int32_t> places) {
    members_.assign(details_[id].members, places);
    tasks_[id].at = details_[id].members.at;
    tasks_[id].num_places = static_cast<uint16_t>(places.size());
    tasks_[id].set(kSum);
    count(id, 1);
  }

  void keep(Id id, int device, int64_t bytes) {
    details_[id].memory_device = device;
    details_[id].memory_bytes = bytes;
    memory_[device] += bytes;
  }

  void connect(Id earlier, Id later) {
    save(earlier, kSavedAfter);
    save(later, kSavedBefore);
    after_.push(tasks_[earlier].after, later);
    before_.push(details_[later].before, earlier);
    ++tasks_[later].waits;
    mark_changed(later);
  }

  void kill(Id id) {
    if (tasks_[id].has(kDead)) return;
    tasks_[id].set(kDead);
    killed_.push_back(id);
    count(id, -1);
    memory_[details_[id].memory_device] -= details_[id].memory_bytes;
  }

  // Remove dead tasks from the edge lists of live ones.
  void cut() {
    cut_before_.clear();
    cut_after_.clear();
    for (const Id dead : killed_) {
      for (const Id id : before(dead)) collect(id, kCutAfter, cut_after_);
      for (const Id id : after(dead)) collect(id, kCutBefore, cut_before_);
    }
    for (const Id id : cut_after_) {
      tasks_[id].unset(kCutAfter);
      save(id, kSavedAfter);
      drop_dead(after_, tasks_[id].after);
    }
    for (const Id id : cut_before_) {
      tasks_[id].unset(kCutBefore);
      save(id, kSavedBefore);
      drop_dead(before_, details_[id].before);
      tasks_[id].waits = static_cast<int32_t>(details_[id].before.size);
      mark_changed(id);
    }
  }

  // Delete dead tasks and keep created ones.
  void commit() {
    list_sources();
    for (const Id id : created_) tasks_[id].unset(kFresh);
    for (const Id id : killed_) release(id);
    end();
  }

  // Restore the state of the last commit.
  void rollback() {
    for (const Id id : created_) {
      if (!tasks_[id].has(kDead)) {
        count(id, -1);
        memory_[details_[id].memory_device] -= details_[id].memory_bytes;
      }
      release(id);
    }
    for (const Saved& saved : saved_) {
      const std::span<const int32_t> numbers{saved_numbers_.data() + saved.at, saved.size};
      if (saved.which == kSavedAfter) {
        after_.assign(tasks_[saved.id].after, numbers);
      } else {
        before_.assign(details_[saved.id].before, numbers);
        tasks_[saved.id].waits = static_cast<int32_t>(saved.size);
      }
    }
    for (const Id id : killed_) {
      if (!is_used_[id]) continue;  // created by this proposal
      tasks_[id].unset(kDead);
      count(id, 1);
      memory_[details_[id].memory_device] += details_[id].memory_bytes;
    }
    end();
  }

  void clear() {
    tasks_.clear();
    details_.clear();
    is_used_.clear();
    free_.clear();
    sources_.clear();
    for (Lists* lists : {&before_, &after_, &members_}) lists->clear();
    created_.clear();
    killed_.clear();
    changed_.clear();
    saved_.clear();
    saved_numbers_.clear();
    std::fill(load_.begin(), load_.end(), 0);
    std::fill(memory_.begin(), memory_.end(), 0);
  }

 private:
  struct Saved {
    Id id;
    Flag which;
    size_t at;
    size_t size;
  };

  bool is_source(Id id) const { return !tasks_[id].waits && !tasks_[id].has(kDead); }

  void list_sources() {
    std::erase_if(sources_, [this](Id id) {
      if (!is_source(id)) tasks_[id].unset(kListed);
      return !is_source(id);
    });
    for (const std::vector<Id>* ids : {&created_, &changed_}) {
      for (const Id id : *ids) {
        if (!is_source(id) || tasks_[id].has(kListed)) continue;
        tasks_[id].set(kListed);
        sources_.push_back(id);
      }
    }
  }

  void count(Id id, int sign) {
    const Time duration = sign * tasks_[id].duration;
    for (const int32_t place : places(id)) load_[place] += duration;
  }

  void collect(Id id, Flag flag, std::vector<Id>& ids) {
    if (tasks_[id].flags & (flag | kDead)) return;
    tasks_[id].set(flag);
    ids.push_back(id);
  }

  void drop_dead(Lists& lists, List& list) {
    const std::span<int32_t> ids = lists.of(list);
    const auto end = std::remove_if(ids.begin(), ids.end(), [this](Id id) { return tasks_[id].has(kDead); });
    list.size = static_cast<uint32_t>(end - ids.begin());
  }

  void save(Id id, Flag which) {
    if (tasks_[id].flags & (which | kFresh)) return;
    tasks_[id].set(which);
    const std::span<int32_t> ids = which == kSavedAfter ? after(id) : before(id);
    saved_.push_back({id, which, saved_numbers_.size(), ids.size()});
    saved_numbers_.insert(saved_numbers_.end(), ids.begin(), ids.end());
  }

  void mark_changed(Id id) {
    if (tasks_[id].flags & (kChanged | kFresh)) return;
    tasks_[id].set(kChanged);
    changed_.push_back(id);
  }

  void release(Id id) {
    if (!is_used_[id]) return;
    before_.release(details_[id].before);
    members_.release(details_[id].members);
    after_.release(tasks_[id].after);
    is_used_[id] = 0;
    free_.push_back(id);
  }

  void end() {
    for (const Saved& saved : saved_) tasks_[saved.id].unset(saved.which);
    for (const Id id : changed_) tasks_[id].unset(kChanged);
    created_.clear();
    killed_.clear();
    changed_.clear();
    saved_.clear();
    saved_numbers_.clear();
  }

  const Topology& topology_;
  std::vector<Task> tasks_;
  std::vector<Details> details_;
  std::vector<uint8_t> is_used_;
  std::vector<Id> free_;
  std::vector<Id> sources_;  // tasks without predecessors, as of the last commit
  Lists before_, after_, members_;
  std::vector<Time> load_;
  std::vector<int64_t> memory_;
  // Since the last commit or rollback:
  std::vector<Id> created_, killed_, changed_;
  std::vector<Saved> saved_;
  std::vector<int32_t> saved_numbers_;
  std::vector<Id> cut_before_, cut_after_;
};

}  // namespace bow::planner
