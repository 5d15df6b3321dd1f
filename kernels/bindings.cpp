// Python bindings of the native runtime: a team of executors, and jobs, which are nodes with a schedule.
#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/Export.h>
#include <torch/csrc/utils/pybind.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "executors.h"
#include "nodes.h"

namespace py = pybind11;

// Declared in torch/csrc/jit/python/pybind_utils.h, whose inclusion would take a third of the compile time.
namespace torch::jit {
TORCH_PYTHON_API c10::IValue toIValue(
    py::handle obj, const c10::TypePtr& type, std::optional<int32_t> N = std::nullopt);
}

namespace bow {
namespace {

// Dispatch mode of executors: no autograd, no inference mode (its tensors could not be used by autograd), and no
// autocast: the caller's would apply to executor 0 only, and captured steps contain their casts.
struct ComputeMode {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// Set the number of intra-op threads of the calling thread, and restore it at the end: also for new threads, which
// inherit the number that any thread has set last.
class ThreadsHere {
 public:
  explicit ThreadsHere(int threads) : before_(at::get_num_threads()) {
    if (threads != before_) at::set_num_threads(threads);
  }
  ~ThreadsHere() { at::set_num_threads(before_); }

 private:
  int before_;
};

class TorchTeam {
 public:
  // The caller is executor 0 if that needs no pinned helper threads: intra-op threads inherit the affinity of the
  // thread that starts them, and the caller may have started its own before.
  TorchTeam(std::vector<std::vector<int>> cores, std::vector<int> threads)
      : threads_(std::move(threads)),
        caller_takes_part_(threads_.size() == 1 || (!threads_.empty() && threads_[0] == 1)),
        team_(std::move(cores), caller_takes_part_, [this](int executor) { enter(threads_.at(executor)); }) {
    TORCH_CHECK(static_cast<int>(threads_.size()) == team_.size(), "one number of threads per executor is needed");
  }

  // Called with the GIL held; `close` releases it, because a thread that ends may need it to free a tensor.
  ~TorchTeam() { close(); }

  // Raises the exception of a signal handler (Ctrl-C), unless the commit had started: then the interrupt is set again
  // for the caller to see after the commit. Exceptions of nodes are kept in the execution.
  void run(Execution& execution, bool record, Stage stage) {
    bool interrupted = false;
    {
      py::gil_scoped_release no_gil;
      ComputeMode mode;
      ThreadsHere threads(caller_takes_part_ ? threads_[0] : at::get_num_threads());
      team_.run(execution, record, [&interrupted] {
        py::gil_scoped_acquire gil;
        // The handler's exception stays set in this thread until the run ends; a second check would miss it.
        interrupted = interrupted || PyErr_CheckSignals() != 0;
        return interrupted;
      }, stage);
    }
    if (interrupted && !execution.has_committed()) throw py::error_already_set();
    if (interrupted) {
      PyErr_Clear();
      PyErr_SetInterrupt();
    }
  }

  void run_turns(Execution& execution) {
    py::gil_scoped_release no_gil;
    ComputeMode mode;
    ThreadsHere threads(caller_takes_part_ ? threads_[0] : at::get_num_threads());
    team_.run_turns(execution);
  }

  void run_parts(std::vector<int64_t> left, const std::function<int64_t(int)>& part) {
    py::gil_scoped_release no_gil;
    ComputeMode mode;
    ThreadsHere threads(caller_takes_part_ ? threads_[0] : at::get_num_threads());
    team_.run_parts(std::move(left), part);
  }

  void post(int executor, Execution& execution, bool record) {
    py::gil_scoped_release no_gil;
    execution.begin(record);
    team_.post(executor, execution, 0);
  }

  // Wait until an executor of `busy` is idle and return it.
  int wait_any(const std::vector<int>& busy) {
    bool interrupted = false;
    int found = kNone;
    {
      py::gil_scoped_release no_gil;
      ThreadsHere threads(at::get_num_threads());
      Watch watch([&interrupted] {
        py::gil_scoped_acquire gil;
        return interrupted = interrupted || PyErr_CheckSignals() != 0;
      });
      Patience patience;
      while (found == kNone && !watch.interrupted()) {
        for (int executor : busy) {
          if (team_.idle(executor)) found = executor;
        }
        if (found == kNone) patience.pause();
      }
    }
    if (interrupted) throw py::error_already_set();
    return found;
  }

  // Wait until all executors are idle, ignoring interrupts.
  void drain() {
    py::gil_scoped_release no_gil;
    Patience patience;
    for (int executor = 0; executor < team_.size(); ++executor) {
      while (!team_.idle(executor)) patience.pause();
    }
  }

  void close() {
    py::gil_scoped_release no_gil;
    team_.close();
  }

  int num_threads() const { return team_.num_threads(); }
  int size() const { return team_.size(); }

 private:
  static void enter(int threads) {
    at::get_num_threads();  // the first call in a thread resets the number
    at::set_num_threads(threads);
    // One per thread, for its lifetime.
    thread_local ComputeMode mode;
    (void)&mode;
  }

  std::vector<int> threads_;  // by executor
  bool caller_takes_part_;
  Team team_;
};

// SGD: learning rate, momentum, weight decay, nesterov. Adam: learning rate, both betas, epsilon, weight decay,
// decoupled.
using SgdSettings = std::tuple<double, double, double, bool>;
using AdamSettings = std::tuple<double, double, double, double, double, bool>;
using StepSettings = std::variant<SgdSettings, AdamSettings>;

// Hyperparameters of a learner's step after `count` others.
void set_step(Averaging& numbers, const StepSettings& settings, double count) {
  if (const auto* sgd = std::get_if<SgdSettings>(&settings)) {
    std::tie(numbers.lr, numbers.momentum, numbers.weight_decay, numbers.nesterov) = *sgd;
    return;
  }
  const auto& [lr, beta1, beta2, epsilon, weight_decay, is_decoupled] = std::get<AdamSettings>(settings);
  numbers.is_adam = true;
  numbers.lr = lr / (1 - std::pow(beta1, count + 1));
  numbers.momentum = beta1;
  numbers.beta2 = beta2;
  numbers.epsilon = epsilon;
  numbers.root = std::sqrt(1 - std::pow(beta2, count + 1));
  numbers.weight_decay = is_decoupled ? 0 : weight_decay;
  numbers.shrunk = is_decoupled ? 1 - lr * weight_decay : 1;
}

// Marks an argument as a slot number.
struct SlotNumber {
  int number;
};

class Job : public Work {
 public:
  // Slots hold the values of all learners; those marked as `kept` are results.
  explicit Job(int num_slots) : slots_(num_slots), kept_(num_slots, 0) {}

  int add_operator(
      const std::string& name, const std::string& overload, const py::list& arguments, const py::dict& keywords,
      std::vector<int> makes, bool is_view, int group, int random_index) {
    c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    const auto& schema = handle.schema().arguments();
    std::vector<Argument> parsed;
    std::vector<int> reads;
    for (size_t i = 0; i < schema.size(); ++i) {
      py::object given;
      if (i < arguments.size()) {
        given = arguments[i];
      } else if (keywords.contains(schema[i].name().c_str())) {
        given = keywords[schema[i].name().c_str()];
      } else {
        TORCH_CHECK(schema[i].default_value().has_value(), name, " lacks its argument ", schema[i].name());
        parsed.push_back({Argument::Kind::kConstant, *schema[i].default_value(), {}});
        continue;
      }
      parsed.push_back(parse(given, schema[i].real_type()));
      for (int slot : parsed.back().slots) {
        if (slot != kNone) reads.push_back(slot);
      }
    }
    const auto add_as = [&]<typename Kind>(bool keeps_view) {
      return add(std::make_unique<Kind>(handle, std::move(parsed), std::move(reads), std::move(makes), keeps_view), group);
    };
    if (MaxPool::is(handle)) return add_as.template operator()<MaxPool>(false);
    if (ReluGradient::is(handle)) return add_as.template operator()<ReluGradient>(false);
    if (RecurrentLayer::is(handle)) return add_as.template operator()<RecurrentLayer>(false);
    if (random_index == kNone) return add_as.template operator()<Operator>(is_view);
    return add(
        std::make_unique<RandomOperator>(
            handle, std::move(parsed), std::move(reads), std::move(makes), learner(group).randomness, random_index),
        group);
  }

  int add_region(const std::string& library, std::vector<int> reads, std::vector<int> makes, int group) {
    return add(std::make_unique<Region>(library, std::move(reads), std::move(makes)), group);
  }

  int add_finish(
      int group, int loss, std::vector<int> metrics, const std::vector<std::tuple<int, at::Tensor, int64_t>>& gradients,
      bool into_row) {
    std::vector<GradientSlot> pieces;
    std::vector<int> reads = metrics;
    std::vector<int64_t> offsets;
    reads.push_back(loss);
    for (const auto& [slot, view, offset] : gradients) {
      pieces.push_back({slot, view, offset});
      reads.push_back(slot);
      offsets.push_back(offset);
    }
    Learner& own = learner(group);
    own.offsets = offsets;
    return add(
        std::make_unique<Finish>(own.outcome, loss, std::move(metrics), std::move(pieces), into_row, std::move(reads)),
        group);
  }

  int add_commit(int group, const std::vector<std::pair<int, at::Tensor>>& targets) {
    std::vector<int> reads;
    for (const auto& target : targets) reads.push_back(target.first);
    return add(std::make_unique<Commit>(learner(group).outcome, targets, std::move(reads)), group);
  }

  // Gathers a learner's batch in turns.
  int add_gather(int group) {
    std::vector<int> makes;
    for (const Expected& each : learner(group).batch) makes.push_back(each.slot);
    return add(std::make_unique<Gather>(*this, group, std::move(makes)), group);
  }

  int add_average(int part, int parts) { return add(std::make_unique<Average>(rows_, part, parts), kNone); }

  void keep(const std::vector<int>& slots) {
    for (int slot : slots) kept_.at(slot) = 1;
  }

  void bind(int slot, at::Tensor tensor) {
    slots_.at(slot) = std::move(tensor);
    kept_.at(slot) = 1;
  }

  // Set the input slots of a learner's batch; the expected metadata is that of the examples `like`.
  void expect(int group, const std::vector<int>& slots, const std::vector<at::Tensor>& like) {
    std::vector<Expected>& own = learner(group).batch;
    own.clear();
    for (size_t i = 0; i < slots.size(); ++i) {
      own.push_back({slots[i], like.at(i).sizes().vec(), like[i].strides().vec(), like[i].scalar_type()});
    }
  }

  // Set one learner's batch and the seed of its random numbers. Returns false, and changes nothing, if the batch does
  // not have the expected metadata.
  bool feed(int group, std::vector<at::Tensor> tensors, uint64_t seed) {
    Learner& own = learner(group);
    if (tensors.size() != own.batch.size()) return false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!own.batch[i].fits(tensors[i])) return false;
    }
    turns_ = Turns();
    for (size_t i = 0; i < tensors.size(); ++i) bind(own.batch[i].slot, std::move(tensors[i]));
    own.randomness->seed = seed;
    own.outcome->active = true;
    return true;
  }

  // Set every learner's batch; none for a learner that sits out.
  bool feed_each(
      const std::vector<std::optional<std::vector<at::Tensor>>>& batches, const std::vector<uint64_t>& seeds) {
    if (batches.size() != learners_.size()) return false;
    for (size_t j = 0; j < batches.size(); ++j) {
      if (!batches[j].has_value()) {
        rest(static_cast<int>(j));
      } else if (!feed(static_cast<int>(j), *batches[j], seeds.at(j))) {
        return false;
      }
    }
    return true;
  }

  // Set every learner's batch, from tensors [learners, batch, ...].
  bool feed_stacked(const std::vector<at::Tensor>& stacked, const std::vector<uint64_t>& seeds) {
    for (const at::Tensor& tensor : stacked) {
      if (tensor.dim() == 0 || tensor.size(0) != static_cast<int64_t>(learners_.size())) return false;
    }
    ComputeMode mode;
    for (size_t j = 0; j < learners_.size(); ++j) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : stacked) tensors.push_back(tensor.select(0, static_cast<int64_t>(j)));
      if (!feed(static_cast<int>(j), std::move(tensors), seeds.at(j))) return false;
    }
    return true;
  }

  void rest(int group) { *learner(group).outcome = TaskOutcome(); }

  // `after`: by node, extra dependencies, whose results it does not read. `threads`: by node, its number of intra-op
  // threads; 0: that of the previous node; empty: that of the executor.
  void schedule(
      std::vector<std::vector<int>> order, std::vector<int64_t> priority, int num_lanes,
      std::vector<std::vector<int>> commit, bool first_come, bool stays, const std::vector<int>& small,
      const std::map<int, std::vector<int>>& after, std::vector<int> threads) {
    Plan plan;
    TORCH_CHECK(
        !order.empty() + !priority.empty() + first_come == 1 &&
            (order.empty() || static_cast<int>(order.size()) == num_lanes) &&
            (commit.empty() || static_cast<int>(commit.size()) == num_lanes) && (!order.empty() || commit.empty()),
        "a schedule has an order for every lane, or priorities, or is first come, first served");
    plan.order = std::move(order);
    plan.commit = std::move(commit);
    plan.priority = std::move(priority);
    plan.first_come = first_come;
    plan.stays = stays;
    plan.num_lanes = num_lanes;
    plan.predecessors = dependencies();
    for (const auto& [node, others] : after) {
      std::vector<int>& before = plan.predecessors.at(node);
      before.insert(before.end(), others.begin(), others.end());
      std::sort(before.begin(), before.end());
      before.erase(std::unique(before.begin(), before.end()), before.end());
    }
    if (!small.empty()) plan.small.assign(nodes_.size(), 0);
    for (int node : small) plan.small.at(node) = 1;
    TORCH_CHECK(threads.empty() || threads.size() == nodes_.size(), "one number of threads per node is needed");
    threads_ = std::move(threads);
    plan.prepare();
    plan_frees(plan);
    execution_ = std::make_unique<Execution>(std::move(plan), *this);
  }

  // By node: the nodes whose results it reads.
  std::vector<std::vector<int>> dependencies() const {
    std::vector<int> maker(slots_.size(), kNone);
    for (size_t node = 0; node < nodes_.size(); ++node) {
      for (int slot : nodes_[node]->makes) {
        if (slot != kNone) maker.at(slot) = static_cast<int>(node);
      }
    }
    std::vector<std::vector<int>> before(nodes_.size());
    for (size_t node = 0; node < nodes_.size(); ++node) {
      for (int slot : nodes_[node]->reads) {
        if (maker.at(slot) != kNone) before[node].push_back(maker[slot]);
      }
    }
    for (auto& list : before) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    return before;
  }

  void run(TorchTeam& team, bool record, bool commits) {
    reset_uses();
    team.run(execution(), record, commits ? Stage::kAll : Stage::kOrder);
    raise_failure();
  }

  // Run the commit that `run` has left out.
  void commit(TorchTeam& team, bool record) {
    TORCH_CHECK(!execution().plan().is_dynamic(), "only a plan with an order has a commit");
    team.run(execution(), record, Stage::kCommit);
    raise_failure();
  }

  void post(TorchTeam& team, int executor, bool record) {
    reset_uses();
    team.post(executor, execution(), record);
  }

  // Set the turns of all learners: learning tasks in sequence, each with its step, on the samples at `indices`
  // [turns, learners, batch] of `sources`. `seeds`: by turn and learner; none if no random numbers are drawn. `due`: by
  // turn, whether it synchronises. `follows`: z is to be the weights before the last step. They end early if one fails
  // or makes a learner infinite or NaN.
  void feed_turns(
      std::vector<at::Tensor> sources, at::Tensor indices, std::vector<uint64_t> seeds, std::vector<bool> due,
      std::vector<int> results, bool follows) {
    TORCH_CHECK(
        indices.dim() == 3 && indices.size(1) == static_cast<int64_t>(learners_.size()) &&
            indices.size(0) == static_cast<int64_t>(due.size()),
        "turns need indices [turns, learners, batch]");
    turns_ = Turns{std::move(sources), std::move(indices), std::move(seeds), std::move(due), std::move(results)};
    turns_.finite.assign(learners_.size(), 1);
    rows_->follows = follows;
    begin_turn();
    for (Learner& own : learners_) own.outcome->active = true;
  }

  // Of the completed turns: the losses [turns, learners], whether each learner stayed finite in the last one, the
  // duration of one in seconds, and metrics [turns, learners, names].
  std::tuple<at::Tensor, std::vector<bool>, double, at::Tensor> turns_outcome(at::ScalarType dtype) {
    const int64_t turns = static_cast<int64_t>(turns_.next), learners = static_cast<int64_t>(learners_.size());
    const auto made = [&](const std::vector<double>& values, at::ScalarType type) {
      at::Tensor all = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
      std::copy(values.begin(), values.end(), all.mutable_data_ptr<double>());
      const int64_t each = turns == 0 ? 0 : static_cast<int64_t>(values.size()) / (turns * learners);
      return all.to(type).view({turns, learners, each});
    };
    std::vector<bool> finite(turns_.finite.begin(), turns_.finite.end());
    const double turn_s = static_cast<double>(turn_ns_) * 1e-9;
    return {made(turns_.losses, dtype).squeeze(-1), finite, turn_s, made(turns_.metrics, at::kFloat)};
  }

  // Estimated duration of the remaining turns in ns; 0: none is left.
  int64_t turns_left() const {
    return static_cast<int64_t>(turns_.due.size() - turns_.next) * std::max<int64_t>(turn_ns_, 1);
  }

  // Run turns on one lane for about `kPartNs`, and return what `turns_left` is then.
  int64_t take_turns() {
    const int64_t began = now_ns();
    const size_t first = turns_.next;
    bool goes_on = true;
    try {
      while (goes_on && (turns_.next == first || now_ns() - began < kPartNs)) {
        execution().begin(false);
        execution().run_lane(0, nullptr);
        if (execution().error() != nullptr) return 0;
        goes_on = next_turn();
      }
    } catch (...) {
      turns_.error = std::current_exception();
      return 0;
    }
    turn_ns_ = (now_ns() - began) / static_cast<int64_t>(turns_.next - first);
    return goes_on ? turns_left() : 0;
  }

  // Run all turns on all lanes, up to one that fails before it has changed anything: to run it again tells why.
  void run_turns(TorchTeam& team) {
    team.run_turns(execution());
    if (has_committed()) raise_failure();
  }

  bool next_turn() override {
    bool all = true;
    for (size_t j = 0; j < learners_.size(); ++j) {
      const TaskOutcome& own = *learners_[j].outcome;
      turns_.finite[j] = own.finite && !rows_->has_overflowed(j);
      all = all && turns_.finite[j];
      turns_.losses.push_back(own.loss);
      turns_.metrics.insert(turns_.metrics.end(), own.metrics.begin(), own.metrics.end());
    }
    release(turns_.results);
    ++turns_.next;
    if (!all || turns_.next == turns_.due.size()) return false;
    begin_turn();
    return true;
  }

  void raise_failure() {
    const std::exception_ptr error = turns_.error != nullptr ? turns_.error : execution().error();
    if (error == nullptr) return;
    try {
      std::rethrow_exception(error);
    } catch (const c10::IndexError& error) {
      throw py::index_error(error.what_without_backtrace());
    } catch (const c10::NotImplementedError& error) {
      PyErr_SetString(PyExc_NotImplementedError, error.what_without_backtrace());
      throw py::error_already_set();
    } catch (const c10::Error& error) {
      throw std::runtime_error(error.what_without_backtrace());
    }
  }

  int failed_node() { return execution().failed_node(); }

  // Whether the commit of the last run has started.
  bool has_committed() { return execution().has_committed(); }

  // Losses [learners], which learners have finite loss, gradient and weights, whether all active ones do, and metrics
  // [names, learners].
  std::tuple<at::Tensor, at::Tensor, bool, std::optional<at::Tensor>> outcome(at::ScalarType dtype, int num_metrics) {
    const int64_t n = static_cast<int64_t>(learners_.size());
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    at::Tensor losses = at::empty({n}, dtype), finite = at::empty({n}, at::kBool);
    bool all = true;
    for (int64_t j = 0; j < n; ++j) {
      const TaskOutcome& own = *learners_[j].outcome;
      const double loss = own.active ? own.loss : kNan;
      if (dtype == at::kFloat) {
        losses.mutable_data_ptr<float>()[j] = static_cast<float>(loss);
      } else {
        losses[j].fill_(loss);
      }
      const bool stays = own.finite && !rows_->has_overflowed(j);
      finite.mutable_data_ptr<bool>()[j] = own.active && stays;
      all = all && (!own.active || stays);
    }
    if (num_metrics == 0) return {losses, finite, all, std::nullopt};
    at::Tensor metrics = at::empty({num_metrics, n}, at::kFloat);
    for (int64_t j = 0; j < n; ++j) {
      const TaskOutcome& own = *learners_[j].outcome;
      for (int64_t i = 0; i < num_metrics; ++i) {
        metrics.mutable_data_ptr<float>()[i * n + j] = static_cast<float>(own.active ? own.metrics.at(i) : kNan);
      }
    }
    return {losses, finite, all, metrics};
  }

  // Set the rows and settings of the step and the averaging for the next run.
  void set_rows(
      at::Tensor weights, std::vector<at::Tensor> moments, at::Tensor z, std::optional<at::Tensor> z_prev,
      const std::vector<StepSettings>& steps, std::vector<at::Tensor> counts, double alpha, double mu,
      bool synchronise, std::optional<at::Tensor> total) {
    const size_t learners = learners_.size();
    TORCH_CHECK(steps.size() == 1 || steps.size() == learners, "settings of the step are one for all, or one by learner");
    rows_->follows = false;
    rows_->weights = std::move(weights);
    rows_->moments = std::move(moments);
    rows_->z = std::move(z);
    rows_->z_prev = z_prev.value_or(at::Tensor());
    rows_->total = total.value_or(at::Tensor());
    rows_->counts = std::move(counts);
    steps_ = steps;
    rows_->numbers.assign(std::max(steps.size(), rows_->counts.size()), Averaging());
    renew_numbers();
    for (Averaging& numbers : rows_->numbers) {
      numbers.alpha = alpha;
      numbers.mu = mu;
      numbers.synchronise = synchronise;
    }
    rows_->outcomes.clear();
    rows_->offsets.clear();
    for (const Learner& own : learners_) {
      rows_->outcomes.push_back(own.outcome);
      rows_->offsets.push_back(own.offsets);
    }
  }

  at::Tensor value(int slot) const { return slots_.at(slot); }

  // Free results that are not read any more.
  void release(const std::vector<int>& slots) {
    for (int slot : slots) slots_.at(slot).reset();
    for (Learner& own : learners_) own.outcome->gradients.clear();
  }

  std::vector<std::tuple<int, int, int64_t, int64_t>> spans() {
    std::vector<std::tuple<int, int, int64_t, int64_t>> all;
    for (size_t lane = 0; lane < execution().spans().size(); ++lane) {
      for (const Span& span : execution().spans()[lane]) {
        all.emplace_back(static_cast<int>(lane), span.node, span.start_ns, span.end_ns);
      }
    }
    return all;
  }

  void run_node(int node) override {
    if (!threads_.empty() && threads_[node] > 0 && threads_[node] != at::get_num_threads()) {
      at::set_num_threads(threads_[node]);  // of this executor only
    }
    nodes_[node]->run(slots_);
    for (int slot : frees_[node]) slots_[slot].reset();
    for (int slot : shared_frees_[node]) {
      if (uses_[slot].fetch_sub(1, std::memory_order_acq_rel) == 1) slots_[slot].reset();
    }
  }

  bool skips(int node) const override {
    const int group = groups_[node];
    return group != kNone && (!learners_[group].outcome->active || nodes_[node]->is_idle());
  }

  int num_nodes() const { return static_cast<int>(nodes_.size()); }

 private:
  // Expected metadata of a tensor of a batch.
  struct Expected {
    int slot;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;

    bool fits(const at::Tensor& tensor) const {
      return tensor.scalar_type() == dtype && tensor.sizes() == sizes && tensor.strides() == strides;
    }
  };

  struct Learner {
    std::vector<Expected> batch;
    std::shared_ptr<TaskOutcome> outcome = std::make_shared<TaskOutcome>();
    std::shared_ptr<Randomness> randomness = std::make_shared<Randomness>();
    std::vector<int64_t> offsets;
  };

  // What learners run one after another, and the outcome; empty: a single run, whose batches are fed.
  struct Turns {
    std::vector<at::Tensor> sources{};
    at::Tensor indices{};  // [turns, learners, batch]
    std::vector<uint64_t> seeds{};  // by turn and learner; empty: no random numbers
    std::vector<bool> due{};
    std::vector<int> results{};  // slots to free after each turn
    size_t next = 0;
    std::vector<double> losses{}, metrics{};  // by turn and learner
    std::vector<char> finite{};  // by learner
    std::exception_ptr error{};
  };

  class Gather : public Node {
   public:
    Gather(Job& job, int group, std::vector<int> makes) : Node({}, std::move(makes)), job_(job), group_(group) {}

    bool is_idle() const override { return job_.turns_.sources.empty(); }

    void run(Slots& slots) override {
      const std::vector<Expected>& batch = job_.learners_[group_].batch;
      const at::Tensor indices = job_.turns_.indices.select(0, static_cast<int64_t>(job_.turns_.next)).select(0, group_);
      for (size_t i = 0; i < batch.size(); ++i) {
        slots[batch[i].slot] = job_.turns_.sources.at(i).index_select(0, indices);
        TORCH_CHECK(batch[i].fits(slots[batch[i].slot]), "a batch has unexpected shapes, dtypes or devices");
      }
    }

   private:
    Job& job_;
    int group_;
  };

  void begin_turn() {
    renew_numbers();
    for (Averaging& numbers : rows_->numbers) numbers.synchronise = turns_.due[turns_.next];
    for (size_t j = 0; j < learners_.size() && !turns_.seeds.empty(); ++j) {
      learners_[j].randomness->seed = turns_.seeds.at(turns_.next * learners_.size() + j);
    }
    reset_uses();
  }

  // Adam's bias correction depends on the step count of each learner, so every learner has its own numbers.
  void renew_numbers() {
    for (size_t j = 0; j < rows_->numbers.size(); ++j) {
      const double count = rows_->counts.empty() ? 0 : rows_->counts[j].item<double>();
      set_step(rows_->numbers[j], steps_[steps_.size() == 1 ? 0 : j], count);
    }
  }

  static constexpr int64_t kPartNs = 5'000'000;

  Learner& learner(int group) {
    while (static_cast<int>(learners_.size()) <= group) learners_.emplace_back();
    return learners_[group];
  }

  int add(std::unique_ptr<Node> node, int group) {
    if (group != kNone) learner(group);
    for (int slot : node->reads) slots_.at(slot);
    nodes_.push_back(std::move(node));
    groups_.push_back(group);
    return num_nodes() - 1;
  }

  static Argument parse(const py::handle& given, const c10::TypePtr& type) {
    if (py::isinstance<SlotNumber>(given)) {
      return {Argument::Kind::kTensor, {}, {given.cast<SlotNumber>().number}};
    }
    if (py::isinstance<py::tuple>(given) || py::isinstance<py::list>(given)) {
      std::vector<int> slots;
      bool any = false, all = true;
      for (const py::handle& part : py::reinterpret_borrow<py::sequence>(given)) {
        const bool is_slot = py::isinstance<SlotNumber>(part);
        any = any || is_slot;
        all = all && (is_slot || part.is_none());
        slots.push_back(is_slot ? part.cast<SlotNumber>().number : kNone);
      }
      if (any && all) {
        const bool optional = type->isSubtypeOf(*c10::ListType::ofOptionalTensors());
        const bool tensors = type->isSubtypeOf(*c10::ListType::ofTensors());
        return {
            optional && !tensors ? Argument::Kind::kOptionalTensors : Argument::Kind::kTensors, {}, std::move(slots)};
      }
      const py::list list(py::reinterpret_borrow<py::sequence>(given));
      return {Argument::Kind::kConstant, torch::jit::toIValue(list, type), {}};
    }
    const bool is_number = py::isinstance<py::int_>(given) || py::isinstance<py::float_>(given);
    if (is_number && type->kind() == c10::TypeKind::TensorType) {
      const c10::IValue number = torch::jit::toIValue(given, c10::NumberType::get());
      return {Argument::Kind::kConstant, at::native::wrapped_scalar_tensor(number.toScalar()), {}};
    }
    return {Argument::Kind::kConstant, torch::jit::toIValue(given, type), {}};
  }

  // A value is freed after its last reader. If one lane has all readers, the last one is known in advance; otherwise
  // an atomic count decides.
  void plan_frees(const Plan& plan) {
    frees_.assign(nodes_.size(), {});
    shared_frees_.assign(nodes_.size(), {});
    std::vector<std::vector<int>> users(slots_.size());
    for (int node = 0; node < num_nodes(); ++node) {
      for (const auto* list : {&nodes_[node]->reads, &nodes_[node]->makes}) {
        for (int slot : *list) {
          if (slot != kNone && (users[slot].empty() || users[slot].back() != node)) users[slot].push_back(node);
        }
      }
    }
    std::vector<int> position(nodes_.size(), 0);
    for (const auto& lane : plan.order) {
      for (size_t i = 0; i < lane.size(); ++i) position[lane[i]] = static_cast<int>(i);
    }
    num_uses_.assign(slots_.size(), 0);
    uses_ = std::vector<std::atomic<int>>(slots_.size());
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const std::vector<int>& own = users[slot];
      if (own.empty() || kept_[slot]) continue;
      const bool one_lane = !plan.is_dynamic() && std::all_of(own.begin(), own.end(), [&](int node) {
        return plan.lane_of[node] == plan.lane_of[own.front()];
      });
      if (one_lane) {
        const int last = *std::max_element(
            own.begin(), own.end(), [&](int a, int b) { return position[a] < position[b]; });
        frees_[last].push_back(static_cast<int>(slot));
      } else {
        num_uses_[slot] = static_cast<int>(own.size());
        shared_.push_back(static_cast<int>(slot));
        for (int node : own) shared_frees_[node].push_back(static_cast<int>(slot));
      }
    }
  }

  void reset_uses() {
    for (int slot : shared_) uses_[slot].store(num_uses_[slot], std::memory_order_relaxed);
  }

  Execution& execution() {
    TORCH_CHECK(execution_ != nullptr, "the job has no schedule yet");
    return *execution_;
  }

  Slots slots_;
  std::vector<char> kept_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<int> groups_;   // by node: its learner
  std::vector<int> threads_;  // by node; empty: those of the executor
  std::vector<Learner> learners_;
  std::vector<StepSettings> steps_;  // by learner, or one for all
  Turns turns_;
  int64_t turn_ns_ = 0;  // duration of a turn, as last measured
  std::shared_ptr<RowState> rows_ = std::make_shared<RowState>();
  std::vector<std::vector<int>> frees_, shared_frees_;  // by node
  std::vector<int> num_uses_, shared_;
  std::vector<std::atomic<int>> uses_;  // by slot
  std::unique_ptr<Execution> execution_;
};

// A step frees its activations and allocates them again in the next round. By default glibc returns such memory to the
// system, especially that of threads other than the first, and the kernel clears every page that it hands out again:
// 4,000 page faults, a sixth of the time, in a round of two learners of ResNet-8 at batch 16.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the maximum of glibc
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "bow's native runtime";
  keep_freed_memory();

  py::class_<SlotNumber>(m, "Slot").def(py::init<int>(), py::arg("number"));

  py::class_<TorchTeam>(m, "Team")
      .def(py::init<std::vector<std::vector<int>>, std::vector<int>>(), py::arg("cores"), py::arg("threads"))
      .def("wait_any", &TorchTeam::wait_any, py::arg("busy"))
      .def("drain", &TorchTeam::drain)
      .def(
          "take_turns",
          [](TorchTeam& team, const std::vector<Job*>& jobs) {
            std::vector<int64_t> left;
            for (const Job* job : jobs) left.push_back(job->turns_left());
            team.run_parts(std::move(left), [&jobs](int index) { return jobs[index]->take_turns(); });
          },
          py::arg("jobs"))
      .def("close", &TorchTeam::close)
      .def_property_readonly("num_threads", &TorchTeam::num_threads)
      .def("__len__", &TorchTeam::size);

  py::class_<Job>(m, "Job")
      .def(py::init<int>(), py::arg("num_slots"))
      .def(
          "add_operator", &Job::add_operator, py::arg("name"), py::arg("overload"), py::arg("arguments"),
          py::arg("keywords"), py::arg("makes"), py::arg("is_view") = false, py::arg("group") = kNone,
          py::arg("random_index") = kNone)
      .def("add_region", &Job::add_region, py::arg("library"), py::arg("reads"), py::arg("makes"), py::arg("group"))
      .def(
          "add_finish", &Job::add_finish, py::arg("group"), py::arg("loss"), py::arg("metrics"), py::arg("gradients"),
          py::arg("into_row"))
      .def("add_commit", &Job::add_commit, py::arg("group"), py::arg("targets"))
      .def("add_gather", &Job::add_gather, py::arg("group"))
      .def("add_average", &Job::add_average, py::arg("part"), py::arg("parts"))
      .def("keep", &Job::keep, py::arg("slots"))
      .def("bind", &Job::bind, py::arg("slot"), py::arg("tensor"))
      .def("expect", &Job::expect, py::arg("group"), py::arg("slots"), py::arg("like"))
      .def("feed", &Job::feed, py::arg("group"), py::arg("tensors"), py::arg("seed"))
      .def("feed_each", &Job::feed_each, py::arg("batches"), py::arg("seeds"))
      .def("feed_stacked", &Job::feed_stacked, py::arg("stacked"), py::arg("seeds"))
      .def(
          "schedule", &Job::schedule, py::arg("order"), py::arg("priority"), py::arg("num_lanes"),
          py::arg("commit") = std::vector<std::vector<int>>(), py::arg("first_come") = false, py::arg("stays") = false,
          py::arg("small") = std::vector<int>(), py::arg("after") = std::map<int, std::vector<int>>(),
          py::arg("threads") = std::vector<int>())
      .def("run", &Job::run, py::arg("team"), py::arg("record") = false, py::arg("commits") = true)
      .def("commit", &Job::commit, py::arg("team"), py::arg("record") = false)
      .def("post", &Job::post, py::arg("team"), py::arg("executor"), py::arg("record") = false)
      .def(
          "feed_turns", &Job::feed_turns, py::arg("sources"), py::arg("indices"), py::arg("seeds"), py::arg("due"),
          py::arg("results"), py::arg("follows"))
      .def("run_turns", &Job::run_turns, py::arg("team"))
      .def("turns_outcome", &Job::turns_outcome, py::arg("dtype"))
      .def("raise_failure", &Job::raise_failure)
      .def_property_readonly("has_committed", &Job::has_committed)
      .def_property_readonly("failed_node", &Job::failed_node)
      .def("outcome", &Job::outcome, py::arg("dtype"), py::arg("num_metrics"))
      .def(
          "set_rows", &Job::set_rows, py::arg("weights"), py::arg("moments"), py::arg("z"), py::arg("z_prev"),
          py::arg("steps"), py::arg("counts"), py::arg("alpha"), py::arg("mu"), py::arg("synchronise"), py::arg("total") = std::nullopt)
      .def("value", &Job::value, py::arg("slot"))
      .def("release", &Job::release, py::arg("slots"))
      .def("spans", &Job::spans)
      .def_property_readonly("num_nodes", &Job::num_nodes);

  m.def("contribute", [](const at::Tensor& weights, const at::Tensor& z, const at::Tensor& total, double alpha) {
    py::gil_scoped_release no_gil;
    contribute(weights, z, total, alpha);
  }, py::arg("weights"), py::arg("z"), py::arg("total"), py::arg("alpha"));
  m.def("derive_seed", [](uint64_t seed, uint64_t index) { return derive_seed({seed, index}); });
}

}  // namespace bow
