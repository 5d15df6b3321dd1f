// Runs random graphs on executors and compares with sequential execution. Compiled with a thread sanitizer, which
// knows nothing of torch: hence this program instead of a test in Python.
//
// Usage: race GRAPHS SEED
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>

#include "executors.h"

namespace {

// Every node mixes what its predecessors left in plain, unprotected memory: an order that is not kept is a data race.
class Mixing : public bow::Work {
 public:
  Mixing(const bow::Plan& plan, int failing, int stopping)
      : plan_(plan), values_(plan.num_nodes()), failing_(failing), stopping_(stopping) {}

  bow::Execution* execution = nullptr;
  std::atomic<int> num_committed{0};

  void run_node(int node) override {
    if (num_turns == acting_turn) {
      if (node == failing_) throw std::runtime_error("as planned");
      if (node == stopping_) execution->stop();
    }
    if (is_commit(node)) {
      uint64_t sum = 0;  // reads what every lane has written: nothing may still be running
      for (uint64_t value : values_) sum += value;
      committed_sum_.fetch_xor(sum);
      ++num_committed;
      return;
    }
    values_[node] = mix(node, values_);
  }

  // Turns of all lanes: what they left behind is compared after each, and the next begins anew.
  bool next_turn() override {
    if (execution->stopped()) return false;
    if (!equals_sequential()) differs = true;
    if (++num_turns == kTurns) return false;
    if (num_turns == throwing_turn) throw std::runtime_error("as planned");
    values_.assign(values_.size(), 0);
    return true;
  }

  static constexpr int kTurns = 5;
  int num_turns = 0, acting_turn = 0, throwing_turn = -1;  // in which a node fails or stops; before which nothing goes on
  bool differs = false;

  bool skips(int node) const override { return node % 11 == 7 && !is_commit(node); }

  bool is_commit(int node) const {
    for (const auto& lane : plan_.commit) {
      if (std::find(lane.begin(), lane.end(), node) != lane.end()) return true;
    }
    return false;
  }

  bool equals_sequential() const {
    std::vector<uint64_t> expected(values_.size());
    for (int node = 0; node < plan_.num_nodes(); ++node) {  // nodes only depend on nodes with smaller numbers
      if (!skips(node) && !is_commit(node)) expected[node] = mix(node, expected);
    }
    return expected == values_;
  }

  void clear() {
    values_.assign(values_.size(), 0);
    num_committed = 0;
  }

 private:
  uint64_t mix(int node, const std::vector<uint64_t>& values) const {
    uint64_t sum = node + 1;
    for (int before : plan_.predecessors[node]) sum = sum * 6364136223846793005ull + values[before];
    return sum;
  }

  const bow::Plan& plan_;
  std::vector<uint64_t> values_;
  std::atomic<uint64_t> committed_sum_{0};
  int failing_;
  int stopping_;
};

bow::Plan random_plan(std::mt19937& random, int lanes) {
  auto below = [&](int n) { return static_cast<int>(random() % n); };
  bow::Plan plan;
  plan.num_lanes = lanes;
  const int nodes = 1 + below(40);
  plan.predecessors.resize(nodes);
  for (int node = 1; node < nodes; ++node) {
    for (int i = below(4); i > 0; --i) plan.predecessors[node].push_back(below(node));
    auto& list = plan.predecessors[node];
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  if (below(2) == 0) {
    plan.order.resize(lanes);
    for (int node = 0; node < nodes; ++node) plan.order[below(lanes)].push_back(node);
    if (below(2) == 0) {
      plan.commit.resize(lanes);
      for (int lane = 0; lane < lanes; ++lane) {
        plan.commit[lane].push_back(nodes + lane);
        plan.predecessors.emplace_back();
      }
    }
  } else {
    plan.first_come = below(3) == 0;
    plan.stays = below(2) == 0;
    if (below(2) == 0) {
      for (int node = 0; node < nodes; ++node) plan.small.push_back(below(3) == 0);
    }
    for (int node = 0; node < nodes && !plan.first_come; ++node) plan.priority.push_back(below(10));
  }
  plan.prepare();
  return plan;
}

}  // namespace

int main(int argc, char** argv) {
  const int graphs = argc > 1 ? std::atoi(argv[1]) : 1000;
  std::mt19937 random(argc > 2 ? std::atoi(argv[2]) : 0);
  std::vector<std::unique_ptr<bow::Team>> teams;
  for (int size = 1; size <= 4; ++size) {
    const std::vector<std::vector<int>> anywhere(size);  // no cores given: more executors than cores are possible
    teams.push_back(std::make_unique<bow::Team>(anywhere, size % 2 == 0, nullptr));
  }
  const auto never = [] { return false; };
  int failures = 0;
  for (int i = 0; i < graphs; ++i) {
    bow::Team& team = *teams[random() % teams.size()];
    const bow::Plan plan = random_plan(random, 1 + static_cast<int>(random() % team.size()));
    const bool fails = random() % 10 == 0;
    const bool stops = random() % 10 == 0;
    Mixing work(
        plan, fails ? static_cast<int>(random() % plan.num_nodes()) : -1,
        stops ? static_cast<int>(random() % plan.num_nodes()) : -1);
    bow::Execution execution(plan, work);
    work.execution = &execution;
    for (int run = 0; run < 3; ++run) {
      work.clear();
      const bool apart = !plan.is_dynamic() && random() % 2 == 0;
      team.run(execution, run == 1, never, apart ? bow::Stage::kOrder : bow::Stage::kAll);
      if (apart && work.num_committed != 0) return std::printf("graph %d committed before its time\n", i), 1;
      if (apart && !execution.stopped()) team.run(execution, run == 1, never, bow::Stage::kCommit);
      const int committed = work.num_committed, commits = plan.commit.empty() ? 0 : plan.num_lanes;
      const bool fails_late = work.is_commit(execution.failed_node());
      if (committed != 0 && committed != commits - fails_late) {
        return std::printf("graph %d committed %d of %d\n", i, committed, commits), 1;
      }
      if (execution.error() != nullptr) {
        ++failures;
        if (!fails) return std::printf("graph %d failed without a reason\n", i), 1;
      } else if (execution.stopped()) {
        if (!stops) return std::printf("graph %d stopped without a reason\n", i), 1;
      } else if (committed != commits) {
        return std::printf("graph %d committed %d of %d\n", i, committed, commits), 1;
      } else if (!work.equals_sequential()) {
        return std::printf("graph %d differs from sequential execution\n", i), 1;
      }
    }
    if (!plan.is_dynamic()) {
      work.clear();
      work.acting_turn = static_cast<int>(random() % work.kTurns);
      work.throwing_turn = random() % 10 == 0 ? 1 + static_cast<int>(random() % (work.kTurns - 1)) : -1;
      team.run_turns(execution);
      const bool ends = execution.error() != nullptr || execution.stopped();
      const int each = plan.commit.empty() ? 0 : plan.num_lanes;
      if (work.differs) return std::printf("graph %d differs in a turn\n", i), 1;
      if (ends ? !fails && !stops && work.throwing_turn < 0 : work.num_turns != work.kTurns || work.num_committed != work.kTurns * each) {
        return std::printf("graph %d ended after %d turns\n", i, work.num_turns), 1;
      }
    }
    std::vector<int64_t> parts(random() % 6, 0);
    for (int64_t& each : parts) each = static_cast<int64_t>(random() % 4);
    std::vector<int64_t> left = parts;
    team.run_parts(parts, [&left](int index) { return --left[index]; });
    for (int64_t each : left) {
      if (each != 0) return std::printf("graph %d: of one of several, %d parts are left\n", i, static_cast<int>(each)), 1;
    }
    if (random() % 500 == 0) team.close();
  }
  std::printf("%d graphs, %d runs that failed as planned\n", graphs, failures);
  return 0;
}
