// Executors: threads pinned to disjoint cores that run the nodes of a plan, in a given order per lane, by priority, or
// first come, first served. Independent of torch, so that it can be tested on its own under ThreadSanitizer.
//
// The only barrier is the one before a commit: a node waits for its dependencies and for nothing else.
//
// Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, sections 4 and 5.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace bow {

using Clock = std::chrono::steady_clock;

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waiting for another core: spin briefly, then yield, then sleep. Spinning for long would block a process that needs
// this core.
class Patience {
 public:
  void pause() {
    ++turns_;
    if (turns_ < kSpins) {
      relax();
    } else if (turns_ < kSpins + kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  static constexpr int kSpins = 4000;   // some 100 us
  static constexpr int kYields = 4000;  // some ms
  int turns_ = 0;
};

// A single-producer, single-consumer queue. Capacity is fixed and never exceeded by its users.
template <typename T, size_t kCapacity>
class SpscQueue {
 public:
  void push(T value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    slots_[tail % kCapacity] = value;
    tail_.store(tail + 1, std::memory_order_release);  // publishes the value
  }

  bool pop(T& value) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    value = slots_[head % kCapacity];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  void clear() { head_.store(tail_.load()); }

 private:
  std::array<T, kCapacity> slots_{};
  alignas(64) std::atomic<size_t> head_{0};
  alignas(64) std::atomic<size_t> tail_{0};
};

// Nodes, their dependencies, and the lanes that run them. A lane is the part of a plan that one executor runs.
//
// Nodes of `commit` change state that outlives the run. They start when every lane has reached them, and then all of
// them run: a failure or an interrupt before that leaves the state unchanged.
struct Plan {
  std::vector<std::vector<int>> predecessors;  // by node
  std::vector<std::vector<int>> order;         // by lane: nodes; empty if dispatch is dynamic
  std::vector<std::vector<int>> commit;        // by lane: nodes after those of `order`; empty if there are none
  std::vector<int64_t> priority;               // by node, higher first; empty in the other modes
  bool first_come = false;                     // dispatch nodes in the order in which they become ready
  bool stays = false;      // prefer the lane of a node's last predecessor if that lane is free
  std::vector<char> small;  // by node: run it at once on the lane where it became ready; empty: none
  int num_lanes = 1;

  // Derived by `prepare`.
  std::vector<std::vector<int>> successors;
  std::vector<std::vector<int>> awaited;  // by node: predecessors that run on another lane
  std::vector<char> announced;            // by node: whether another lane waits for it
  std::vector<int> lane_of;               // by node; -1 if dispatch is dynamic

  int num_nodes() const { return static_cast<int>(predecessors.size()); }
  // Whether nodes are assigned to lanes at run time.
  bool is_dynamic() const { return first_come || !priority.empty(); }

  void prepare() {
    const int n = num_nodes();
    successors.assign(n, {});
    awaited.assign(n, {});
    announced.assign(n, 0);
    lane_of.assign(n, -1);
    for (const auto* lists : {&order, &commit}) {
      for (size_t lane = 0; lane < lists->size(); ++lane) {
        for (int node : (*lists)[lane]) lane_of.at(node) = static_cast<int>(lane);
      }
    }
    for (int node = 0; node < n; ++node) {
      for (int before : predecessors[node]) {
        successors.at(before).push_back(node);
        if (!is_dynamic() && lane_of[before] != lane_of[node]) {
          awaited[node].push_back(before);
          announced[before] = 1;
        }
      }
    }
  }
};

// The implementation of the nodes.
class Work {
 public:
  virtual ~Work() = default;
  virtual void run_node(int node) = 0;
  // Whether a node is skipped in this run.
  virtual bool skips(int node) const = 0;
  // Called by one lane between two turns: note what the last one did and prepare the next; returns whether there is one.
  virtual bool next_turn() { return false; }
};

// Start and end of a node, in nanoseconds of the steady clock.
struct Span {
  int node;
  int64_t start_ns;
  int64_t end_ns;
};

// Polls for interrupts (Ctrl-C) at most once per period. Only for the calling thread.
class Watch {
 public:
  explicit Watch(std::function<bool()> interrupted) : interrupted_(std::move(interrupted)), next_(now_ns() + kPeriod) {}

  bool interrupted() {
    const int64_t now = now_ns();
    if (now < next_) return false;
    next_ = now + kPeriod;
    return interrupted_();
  }

 private:
  static constexpr int64_t kPeriod = 50'000'000;  // 50 ms
  std::function<bool()> interrupted_;
  int64_t next_;
};

// The part of a plan to run: all, or separately the part before the commit and the commit, for a caller that has to
// wait for something between them.
enum class Stage { kAll, kOrder, kCommit };

// The run-time state of a plan, shared by its lanes; reused by every run.
class Execution {
 public:
  Execution(Plan plan, Work& work)
      : plan_(std::move(plan)),
        work_(work),
        done_(plan_.num_nodes()),
        pending_(plan_.num_nodes()),
        lanes_(plan_.num_lanes),
        spans_(plan_.num_lanes) {}

  const Plan& plan() const { return plan_; }

  // Called before the lanes run; no lane of the last run may still be running.
  void begin(bool record, Stage stage = Stage::kAll) {
    ++epoch_;
    record_ = record;
    stage_ = stage;
    phase_.store(Phase::kRunning, std::memory_order_relaxed);
    num_arrived_.store(0, std::memory_order_relaxed);
    failed_node_ = -1;
    error_ = nullptr;
    if (stage != Stage::kCommit) {
      for (auto& spans : spans_) spans.clear();
    }
    if (plan_.is_dynamic()) begin_dynamic();
  }

  // Run a lane to its end. Returns early if another lane failed or the caller was interrupted.
  void run_lane(int lane, Watch* watch) {
    if (plan_.is_dynamic()) {
      run_dynamic(lane, watch);
    } else {
      run_in_order(lane, watch);
    }
  }

  // Run the plan in turns, one after another, while `next_turn` returns true. Only for plans with an order.
  void run_turns(int lane) {
    do {
      run_in_order(lane, nullptr);
    } while (another_turn());
  }

  // Abort the run, unless its results are already being committed.
  void stop() {
    Phase running = Phase::kRunning;
    phase_.compare_exchange_strong(running, Phase::kStopped, std::memory_order_acq_rel);
  }
  bool stopped() const { return phase_.load(std::memory_order_acquire) == Phase::kStopped; }
  // Whether the commit has started.
  bool has_committed() const { return phase_.load(std::memory_order_acquire) == Phase::kCommitting; }

  // Valid after all lanes have returned.
  int failed_node() const { return failed_node_; }
  std::exception_ptr error() const { return error_; }
  const std::vector<std::vector<Span>>& spans() const { return spans_; }

 private:
  enum class Phase { kRunning, kCommitting, kStopped };

  struct alignas(64) Lane {
    SpscQueue<int, 4> inbox;     // from the scheduling lane to this one
    SpscQueue<int, 4> finished;  // from this lane to the scheduling one
    bool busy = false;           // guarded by `scheduling_`
    std::deque<int> own;         // small nodes that became ready here; guarded by `scheduling_`
  };

  void run_in_order(int lane, Watch* watch) {
    if (stage_ != Stage::kCommit && !run_order(lane, watch)) return;
    // A separate commit cannot be interrupted: other parties may have committed already.
    if (stage_ == Stage::kCommit) watch = nullptr;
    if (stage_ != Stage::kOrder && !plan_.commit.empty() && all_arrived(watch)) {
      for (int node : plan_.commit[lane]) run_node(node, lane);
    }
  }

  bool run_order(int lane, Watch* watch) {
    for (int node : plan_.order[lane]) {
      for (int before : plan_.awaited[node]) {
        if (!await(before, watch)) return false;
      }
      if (stopped() || (watch != nullptr && interrupted(*watch))) return false;
      if (!run_node(node, lane)) return false;
      if (plan_.announced[node]) done_[node].store(epoch_, std::memory_order_release);  // publishes its results
    }
    return true;
  }

  // Wait until every lane has reached its commit; the last one starts it. A stopped lane does not arrive.
  bool all_arrived(Watch* watch) {
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == plan_.num_lanes) {
      Phase running = Phase::kRunning;
      phase_.compare_exchange_strong(running, Phase::kCommitting, std::memory_order_acq_rel);
    }
    Patience patience;
    while (phase_.load(std::memory_order_acquire) == Phase::kRunning) {
      if (watch != nullptr) interrupted(*watch);
      patience.pause();
    }
    return phase_.load(std::memory_order_acquire) == Phase::kCommitting;
  }

  // Wait until every lane has ended its turn; the last one prepares the next.
  bool another_turn() {
    const uint32_t turn = turn_.load(std::memory_order_acquire);
    if (num_ended_.fetch_add(1, std::memory_order_acq_rel) + 1 == plan_.num_lanes) {
      num_ended_.store(0, std::memory_order_relaxed);
      try {
        goes_on_ = error_ == nullptr && work_.next_turn();
      } catch (...) {
        goes_on_ = false;
        error_ = std::current_exception();
      }
      if (goes_on_) begin(false);
      turn_.store(turn + 1, std::memory_order_release);
    } else {
      Patience patience;
      while (turn_.load(std::memory_order_acquire) == turn) patience.pause();
    }
    return goes_on_;
  }

  bool await(int node, Watch* watch) {
    Patience patience;
    while (done_[node].load(std::memory_order_acquire) != epoch_) {
      if (stopped() || (watch != nullptr && interrupted(*watch))) return false;
      patience.pause();
    }
    return true;
  }

  bool interrupted(Watch& watch) {
    if (!watch.interrupted()) return false;
    stop();
    return true;
  }

  bool run_node(int node, int lane) {
    if (work_.skips(node)) return true;
    const int64_t start = record_ ? now_ns() : 0;
    try {
      work_.run_node(node);
    } catch (...) {
      std::lock_guard<std::mutex> guard(failing_);
      if (error_ == nullptr) {
        failed_node_ = node;
        error_ = std::current_exception();
      }
      stop();
      return false;
    }
    if (record_) spans_[lane].push_back({node, start, now_ns()});
    return true;
  }

  void begin_dynamic() {
    ready_ = {};
    num_ready_ = 0;
    last_lane_.assign(plan_.stays ? plan_.num_nodes() : 0, -1);
    remaining_.store(plan_.num_nodes(), std::memory_order_relaxed);
    for (Lane& lane : lanes_) {
      lane.inbox.clear();
      lane.finished.clear();
      lane.busy = false;
      lane.own.clear();
    }
    for (int node = 0; node < plan_.num_nodes(); ++node) {
      pending_[node] = static_cast<int>(plan_.predecessors[node].size());
      if (pending_[node] == 0) make_ready(node);
    }
  }

  // Any idle lane schedules for all: a dedicated scheduler thread would need a core.
  void run_dynamic(int index, Watch* watch) {
    Lane& lane = lanes_[index];
    Patience patience;
    while (remaining_.load(std::memory_order_acquire) > 0 && !stopped()) {
      if (watch != nullptr && interrupted(*watch)) return;
      int node;
      if (lane.inbox.pop(node)) {
        if (!run_node(node, index)) return;
        lane.finished.push(node);
        patience = Patience();
        schedule();
      } else if (!schedule()) {
        patience.pause();
      }
    }
  }

  // Returns whether it dispatched a node. If another lane holds the lock, it may have missed the nodes that this lane
  // has just finished; therefore every lane keeps trying until all nodes are done.
  bool schedule() {
    if (scheduling_.test_and_set(std::memory_order_acquire)) return false;
    int num_finished = 0;
    for (size_t index = 0; index < lanes_.size(); ++index) {
      Lane& lane = lanes_[index];
      int node;
      while (lane.finished.pop(node)) {
        lane.busy = false;
        ++num_finished;
        for (int next : plan_.successors[node]) {
          if (plan_.stays) last_lane_[next] = static_cast<int>(index);
          if (--pending_[next] > 0) continue;
          if (!plan_.small.empty() && plan_.small[next]) {
            lane.own.push_back(next);
          } else {
            make_ready(next);
          }
        }
      }
    }
    const bool handed_out = hand_out();
    scheduling_.clear(std::memory_order_release);
    if (num_finished > 0) remaining_.fetch_sub(num_finished, std::memory_order_acq_rel);
    return handed_out;
  }

  bool hand_out() {
    size_t num_idle = 0;
    bool handed_out = false;
    for (Lane& lane : lanes_) {
      if (lane.busy) continue;
      if (lane.own.empty()) {
        ++num_idle;
      } else {
        give(lane, lane.own.front());
        lane.own.pop_front();
        handed_out = true;
      }
    }
    for (; num_idle > 0 && !ready_.empty(); --num_idle) {
      const int node = -ready_.top().second;
      ready_.pop();
      const int preferred = plan_.stays ? last_lane_[node] : -1;
      const bool stays = preferred >= 0 && !lanes_[preferred].busy;
      give(stays ? lanes_[preferred] : *std::find_if(lanes_.begin(), lanes_.end(), [](Lane& l) { return !l.busy; }), node);
      handed_out = true;
    }
    return handed_out;
  }

  static void give(Lane& lane, int node) {
    lane.inbox.push(node);
    lane.busy = true;
  }

  // Ties: the node with the lower index first.
  void make_ready(int node) { ready_.emplace(plan_.first_come ? -num_ready_++ : plan_.priority[node], -node); }

  Plan plan_;
  Work& work_;
  uint32_t epoch_ = 0;
  bool record_ = false;
  Stage stage_ = Stage::kAll;
  std::vector<std::atomic<uint32_t>> done_;  // by node: epoch of the last run that finished it
  std::atomic<Phase> phase_{Phase::kRunning};
  std::atomic<int> num_arrived_{0};  // lanes that wait for the commit
  std::atomic<uint32_t> turn_{0};
  std::atomic<int> num_ended_{0};  // lanes that have ended their turn
  bool goes_on_ = false;           // written by the last of them
  std::mutex failing_;
  int failed_node_ = -1;
  std::exception_ptr error_;

  std::atomic_flag scheduling_ = ATOMIC_FLAG_INIT;
  std::vector<int> pending_;                                // guarded by `scheduling_`
  std::priority_queue<std::pair<int64_t, int>> ready_;      // guarded by `scheduling_`
  int64_t num_ready_ = 0;                                   // nodes made ready; guarded by `scheduling_`
  std::vector<int> last_lane_;                              // by node: its last predecessor's; guarded by `scheduling_`
  std::atomic<int> remaining_{0};
  std::vector<Lane> lanes_;
  std::vector<std::vector<Span>> spans_;  // by lane
};

inline bool pin(const std::vector<int>& cores) {
  if (cores.empty()) return true;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

// Pins the calling thread for the lifetime of this object.
class PinnedHere {
 public:
  explicit PinnedHere(const std::vector<int>& cores) {
    restore_ = !cores.empty() && sched_getaffinity(0, sizeof(before_), &before_) == 0 && pin(cores);
  }
  ~PinnedHere() {
    if (restore_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  PinnedHere(const PinnedHere&) = delete;
  PinnedHere& operator=(const PinnedHere&) = delete;

 private:
  cpu_set_t before_;
  bool restore_;
};

// A fixed number of executors. With `caller_takes_part` the thread that calls `run` is executor 0, which saves two
// thread wake-ups; the others have threads of their own.
class Team {
 public:
  // `enter` runs once in every thread of the team, with the index of its executor.
  Team(std::vector<std::vector<int>> cores, bool caller_takes_part, std::function<void(int)> enter)
      : cores_(std::move(cores)), caller_takes_part_(caller_takes_part), enter_(std::move(enter)), pid_(getpid()) {
    if (cores_.empty()) throw std::invalid_argument("a team needs at least one executor, got none");
    for (size_t i = 0; i < cores_.size(); ++i) seats_.push_back(std::make_unique<Seat>());
  }

  ~Team() { close(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(cores_.size()); }

  int num_threads() const {
    return static_cast<int>(std::count_if(seats_.begin(), seats_.end(), [](auto& s) { return s->thread.joinable(); }));
  }

  // Stop the threads; the next run restarts them.
  void close() {
    if (pid_ != getpid()) {  // forked: the threads do not exist in this process
      for (auto& seat : seats_) {
        if (seat->thread.joinable()) seat->thread.detach();
      }
      return;
    }
    for (auto& seat : seats_) {
      if (!seat->thread.joinable()) continue;
      seat->closing = true;
      announce(*seat);
      seat->thread.join();
      seat->closing = false;
    }
  }

  // Run all lanes, lane i on executor i, and return when they are done.
  void run(
      Execution& execution, bool record, const std::function<bool()>& interrupted, Stage stage = Stage::kAll) {
    Watch watch(interrupted);
    execution.begin(record, stage);
    const auto lane = [&](int index) { execution.run_lane(index, caller_takes_part_ && index == 0 ? &watch : nullptr); };
    run_on(lanes_of(execution), lane, [&] {
      if (stage != Stage::kCommit && !execution.stopped() && watch.interrupted()) execution.stop();
    });
  }

  // The same for turns of all lanes together, which cannot be interrupted.
  void run_turns(Execution& execution) {
    execution.begin(false);
    run_on(lanes_of(execution), [&](int lane) { execution.run_turns(lane); }, [] {});
  }

  // Start one lane on one executor, which must be idle, and return immediately.
  void post(int executor, Execution& execution, int lane) {
    post(executor, [&execution, lane] { execution.run_lane(lane, nullptr); });
  }

  // Run pieces of work part by part until none has anything left. A free executor runs the next part of the piece that
  // has most left and that no other executor runs. `part(i)` returns what is left of a piece, and must not throw.
  void run_parts(std::vector<int64_t> left, const std::function<int64_t(int)>& part) {
    const int executors = std::min(size(), static_cast<int>(left.size()));
    std::mutex taking;  // guards `left`, which is 0 while an executor runs a part
    const auto take = [&left, &part, &taking] {
      std::unique_lock<std::mutex> guard(taking);
      for (;;) {
        const auto most = std::max_element(left.begin(), left.end());
        if (most == left.end() || *most <= 0) return;  // other executors run all that is left
        *most = 0;
        guard.unlock();
        const int64_t rest = part(static_cast<int>(most - left.begin()));
        guard.lock();
        *most = rest;
      }
    };
    run_on(executors, [&take](int) { take(); }, [] {});
  }

  bool idle(int executor) const {
    const Seat& seat = *seats_.at(executor);
    return seat.finished.load(std::memory_order_acquire) == seat.posted.load(std::memory_order_relaxed);
  }

 private:
  // The mailbox of one executor: work is announced by a counter that only the team increments.
  struct Seat {
    std::thread thread;
    std::function<void()> work;
    bool closing = false;
    uint32_t served = 0;  // only accessed by the executor once its thread runs
    alignas(64) std::atomic<uint32_t> posted{0};
    alignas(64) std::atomic<uint32_t> finished{0};
  };

  int lanes_of(const Execution& execution) const {
    const int lanes = execution.plan().num_lanes;
    if (lanes > size()) throw std::invalid_argument("the plan has more lanes than the team has executors");
    return lanes;
  }

  // Run `work(i)` on each of the first executors and wait for all; `meanwhile` is called while the caller waits.
  void run_on(int executors, const std::function<void(int)>& work, const std::function<void()>& meanwhile) {
    const int first = caller_takes_part_ ? 1 : 0;
    for (int each = first; each < executors; ++each) ensure_thread(each);  // before any runs, because it may fail
    for (int each = first; each < executors; ++each) post(each, [&work, each] { work(each); });
    if (caller_takes_part_) {
      PinnedHere pinned(executors > 1 ? cores_[0] : std::vector<int>());
      work(0);
    }
    Patience patience;
    for (int each = first; each < executors; ++each) {
      while (!idle(each)) {
        meanwhile();
        patience.pause();
      }
    }
  }

  void post(int executor, std::function<void()> work) {
    if (pid_ != getpid()) {
      throw std::runtime_error("executor threads do not exist in a forked process; create the team after forking");
    }
    Seat& seat = *seats_.at(executor);
    if (!idle(executor)) throw std::logic_error("the executor is busy");
    ensure_thread(executor);
    seat.work = std::move(work);
    announce(seat);
  }

  void ensure_thread(int executor) {
    Seat& seat = *seats_.at(executor);
    if (seat.thread.joinable()) return;
    seat.served = seat.posted.load();
    seat.thread = std::thread([this, executor] { serve(executor); });
  }

  static void announce(Seat& seat) {
    seat.posted.fetch_add(1, std::memory_order_release);  // publishes the work
    seat.posted.notify_one();
  }

  void serve(int executor) {
    Seat& seat = *seats_[executor];
    pin(cores_[executor]);
    if (enter_) enter_(executor);
    for (;;) {
      await_work(seat);
      ++seat.served;
      if (seat.closing) {
        seat.finished.store(seat.served, std::memory_order_release);
        return;
      }
      seat.work();
      seat.finished.store(seat.served, std::memory_order_release);
    }
  }

  // Rounds follow each other within a fraction of a millisecond, so spin for a while: waking a thread takes longer.
  static void await_work(Seat& seat) {
    const int64_t until = now_ns() + kAwakeNs;
    while (seat.posted.load(std::memory_order_acquire) == seat.served) {
      if (now_ns() < until) {
        for (int i = 0; i < 16; ++i) relax();
      } else {
        seat.posted.wait(seat.served, std::memory_order_acquire);
      }
    }
  }

  static constexpr int64_t kAwakeNs = 200'000;

  std::vector<std::vector<int>> cores_;  // by executor
  bool caller_takes_part_;
  std::function<void(int)> enter_;
  pid_t pid_;
  std::vector<std::unique_ptr<Seat>> seats_;
};

}  // namespace bow
