// Nodes of a job that use torch: call an ATen operator, run a compiled region, finish a learning task, step and
// average. A node reads and makes values, which are stored in slots.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/threshold_backward.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "averaging.h"

namespace bow {

using Slots = std::vector<at::Tensor>;

constexpr int kNone = -1;  // instead of a slot: no tensor

// The same function as bow.seeds.derive_seed.
inline uint64_t derive_seed(std::initializer_list<uint64_t> parts) {
  uint64_t state = 0;
  for (uint64_t part : parts) {
    state += part + 0x9E3779B97F4A7C15ull;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
    state ^= state >> 31;
  }
  return state >> 1;
}

// The seed of one learner's random numbers in one learning task.
struct Randomness {
  uint64_t seed = 0;
};

class Node {
 public:
  Node(std::vector<int> reads, std::vector<int> makes) : reads(std::move(reads)), makes(std::move(makes)) {}
  virtual ~Node() = default;
  virtual void run(Slots& slots) = 0;
  // Whether there is nothing to do in this run.
  virtual bool is_idle() const { return false; }

  const std::vector<int> reads;
  const std::vector<int> makes;  // kNone for an unused result
};

// An argument of an operator: a constant, or one or several slots.
struct Argument {
  enum class Kind { kConstant, kTensor, kTensors, kOptionalTensors };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  std::vector<int> slots;
};

// An ATen operator, called through torch's dispatcher.
class Operator : public Node {
 public:
  Operator(
      c10::OperatorHandle handle, std::vector<Argument> arguments, std::vector<int> reads, std::vector<int> makes,
      bool is_view)
      : Node(std::move(reads), std::move(makes)),
        handle_(std::move(handle)),
        arguments_(std::move(arguments)),
        is_view_(is_view && this->makes.size() == 1 && this->reads.size() == 1) {}

  void run(Slots& slots) override {
    if (is_view_ && view_again(slots)) return;
    thread_local torch::jit::Stack stack;
    const Cleared cleared{stack};  // also if the operator throws: leftovers would live as long as the thread
    for (const Argument& argument : arguments_) push(argument, slots, stack);
    handle_.callBoxed(stack);
    size_t next = 0;
    for (c10::IValue& result : stack) store(result, slots, next);
    if (is_view_) remember_view(slots);
  }

 protected:
  std::vector<Argument> arguments_;

 private:
  struct Cleared {
    torch::jit::Stack& stack;
    ~Cleared() { stack.clear(); }
  };

  static void push(const Argument& argument, const Slots& slots, torch::jit::Stack& stack) {
    switch (argument.kind) {
      case Argument::Kind::kConstant:
        stack.push_back(argument.constant);
        break;
      case Argument::Kind::kTensor:
        stack.emplace_back(slots[argument.slots[0]]);
        break;
      case Argument::Kind::kTensors: {
        c10::List<at::Tensor> list;
        list.reserve(argument.slots.size());
        for (int slot : argument.slots) list.push_back(slots[slot]);
        stack.emplace_back(std::move(list));
        break;
      }
      case Argument::Kind::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(argument.slots.size());
        for (int slot : argument.slots) {
          list.push_back(slot == kNone ? std::optional<at::Tensor>() : std::optional<at::Tensor>(slots[slot]));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }

  void store(c10::IValue& result, Slots& slots, size_t& next) {
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) keep(tensor, slots, next);
    } else if (result.isTensor()) {
      keep(std::move(result).toTensor(), slots, next);
    } else {
      ++next;
    }
  }

  void keep(at::Tensor tensor, Slots& slots, size_t& next) {
    const int slot = makes.at(next++);
    if (slot != kNone) slots[slot] = std::move(tensor);
  }

  // Reuse the sizes and strides of the last view if the source has the same layout: a tenth of the operator's cost.
  bool view_again(Slots& slots) {
    const at::Tensor& source = slots[reads[0]];
    if (!remembered_ || source.sizes() != source_sizes_ || source.strides() != source_strides_) return false;
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(source.storage()), source.key_set(), source.dtype());
    c10::TensorImpl* impl = view.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(sizes_, strides_, source.storage_offset() + shift_);
    slots[makes[0]] = std::move(view);
    return true;
  }

  void remember_view(const Slots& slots) {
    const at::Tensor& source = slots[reads[0]];
    const at::Tensor& view = slots[makes[0]];
    if (!view.is_alias_of(source) || view.dtype() != source.dtype() || view.key_set() != source.key_set()) {
      is_view_ = false;
      return;
    }
    source_sizes_ = source.sizes().vec();
    source_strides_ = source.strides().vec();
    sizes_ = view.sizes().vec();
    strides_ = view.strides().vec();
    shift_ = view.storage_offset() - source.storage_offset();
    remembered_ = true;
  }

  c10::OperatorHandle handle_;
  bool is_view_;
  bool remembered_ = false;
  std::vector<int64_t> source_sizes_, source_strides_, sizes_, strides_;
  int64_t shift_ = 0;
};

// An operator that draws random numbers from its own stream: (seed of the learning task, index of the operator).
class RandomOperator : public Operator {
 public:
  RandomOperator(
      c10::OperatorHandle handle, std::vector<Argument> arguments, std::vector<int> reads, std::vector<int> makes,
      std::shared_ptr<Randomness> randomness, uint64_t index)
      : Operator(handle, std::move(arguments), std::move(reads), std::move(makes), false),
        randomness_(std::move(randomness)),
        index_(index) {
    const auto& schema = handle.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i) {
      if (schema[i].name() != "generator") continue;
      arguments_[i].constant = c10::IValue(generator_);
      has_generator_ = true;
    }
  }

  void run(Slots& slots) override {
    const uint64_t seed = derive_seed({randomness_->seed, index_});
    if (has_generator_) {
      generator_.set_current_seed(seed);
      Operator::run(slots);
      return;
    }
    // It takes no generator: use torch's default generator, which all executors share.
    static std::mutex turns;
    std::lock_guard<std::mutex> guard(turns);
    at::Generator shared = at::detail::getDefaultCPUGenerator();
    const at::Tensor state = shared.get_state();
    shared.set_current_seed(seed);
    try {
      Operator::run(slots);
    } catch (...) {
      shared.set_state(state);
      throw;
    }
    shared.set_state(state);
  }

 private:
  std::shared_ptr<Randomness> randomness_;
  at::Generator generator_ = at::make_generator<at::CPUGeneratorImpl>();  // not shared: executors run concurrently
  uint64_t index_;
  bool has_generator_ = false;
};

// Max pooling for contiguous NCHW input, where torch's kernel is not vectorised and takes a fifth of a step of LeNet.
// Bitwise the same values and indices: the first of several largest elements of a window, or its last NaN.
class MaxPool : public Operator {
 public:
  using Operator::Operator;

  static bool is(const c10::OperatorHandle& handle) {
    return handle.operator_name().name == "aten::max_pool2d_with_indices";
  }

  void run(Slots& slots) override {
    const at::Tensor& input = slots[reads[0]];
    const auto list = [this](size_t i) { return arguments_[i].constant.toIntVector(); };
    const bool fits = reads.size() == 1 && input.scalar_type() == at::kFloat && !input.is_neg() && input.dim() == 4 &&
                      input.is_contiguous() && input.size(3) < (1 << 15) && input.size(2) < (1 << 15) &&
                      list(4) == std::vector<int64_t>(list(4).size(), 1) && !arguments_[5].constant.toBool();
    if (!fits) return Operator::run(slots);
    const auto kernel = pair(list(1)), stride = list(2).empty() ? kernel : pair(list(2)), padding = pair(list(3));
    Axis rows{input.size(2), kernel[0], stride[0], padding[0]}, columns{input.size(3), kernel[1], stride[1], padding[1]};
    if (rows.count() < 1 || columns.count() < 1) return Operator::run(slots);  // raises torch's error
    const std::vector<int64_t> sizes = {input.size(0), input.size(1), rows.count(), columns.count()};
    at::Tensor best = at::empty(sizes, input.options()), where = at::empty(sizes, input.options().dtype(at::kLong));
    const float* from = input.const_data_ptr<float>();
    float* to = best.mutable_data_ptr<float>();
    int64_t* index = where.mutable_data_ptr<int64_t>();
    const int64_t size = rows.size * columns.size, made = rows.count() * columns.count();
    at::parallel_for(0, sizes[0] * sizes[1], std::max<int64_t>(1, 4096 / made), [&](int64_t begin, int64_t end) {
      std::vector<int32_t> places(columns.count());
      for (int64_t i = begin; i < end; ++i) plane(from + i * size, rows, columns, to + i * made, index + i * made, places.data());
    });
    if (makes[0] != kNone) slots[makes[0]] = std::move(best);
    if (makes[1] != kNone) slots[makes[1]] = std::move(where);
  }

 private:
  struct Axis {
    int64_t size, kernel, stride, padding;
    int64_t count() const { return (size + 2 * padding - kernel) / stride + 1; }
  };

  static std::array<int64_t, 2> pair(const std::vector<int64_t>& values) { return {values.front(), values.back()}; }

  static void plane(const float* from, const Axis& rows, const Axis& columns, float* best, int64_t* index, int32_t* places) {
    const int64_t wide = columns.count(), stride = columns.stride;
    // Windows completely inside the plane along this axis.
    const int64_t begin = std::min(wide, (columns.padding + stride - 1) / stride);
    const int64_t end = std::min(wide, (columns.size + columns.padding - columns.kernel) / stride + 1);
    const bool is_square = rows.kernel == columns.kernel && begin < end;
    for (int64_t row = 0; row < rows.count(); ++row, best += wide, index += wide) {
      const int64_t top = row * rows.stride - rows.padding;
      const int64_t first = std::max<int64_t>(top, 0), last = std::min(top + rows.kernel, rows.size);
      const auto rest = [&](int64_t from_window, int64_t to_window) {
        for (int64_t i = from_window; i < to_window; ++i) window(from, columns, first, last, i, best + i, places + i);
      };
      const bool is_whole = is_square && last - first == rows.kernel;
      const int64_t corner = first * columns.size - columns.padding;  // of window 0
      if (is_whole && rows.kernel == 2 && stride == 2) {
        inside<2, 2>(from, corner, columns.size, begin, end, best, places);
      } else if (is_whole && rows.kernel == 3 && stride == 2) {
        inside<3, 2>(from, corner, columns.size, begin, end, best, places);
      } else {
        rest(begin, end);
      }
      rest(0, begin);
      rest(std::max(begin, end), wide);
      for (int64_t i = 0; i < wide; ++i) index[i] = places[i];
    }
  }

  // Windows inside the plane, one vector at a time; the last vector may overlap the previous one.
  template <int kKernel, int kStride>
  static void inside(
      const float* from, int64_t corner, int64_t width, int64_t begin, int64_t end, float* best, int32_t* places) {
    const int64_t lanes = end - begin >= 8 ? 8 : end - begin >= 4 ? 4 : 1;
    for (int64_t i = begin; i < end; i += lanes) {
      const int64_t first = std::min(i, end - lanes), left = corner + first * kStride;
      const auto take = [&]<int kLanes>() {
        windows<kKernel, kStride, kLanes>(from + left, width, static_cast<int32_t>(left), best + first, places + first);
      };
      lanes == 8 ? take.template operator()<8>() : lanes == 4 ? take.template operator()<4>() : take.template operator()<1>();
    }
  }

  template <int kKernel, int kStride, int kLanes>
  static void windows(
      const float* __restrict__ from, int64_t width, int32_t left, float* __restrict__ best, int32_t* __restrict__ places) {
    for (int lane = 0; lane < kLanes; ++lane) {
      float most = -std::numeric_limits<float>::infinity();
      int32_t place = 0;
      for (int y = 0; y < kKernel; ++y) {
        for (int x = 0; x < kKernel; ++x) {
          const float value = from[lane * kStride + y * width + x];
          const bool takes = (value > most) | (value != value);
          most = takes ? value : most;
          place = takes ? static_cast<int32_t>(y * width + x) : place;
        }
      }
      best[lane] = most;
      places[lane] = left + lane * kStride + place;
    }
  }

  // One window, possibly partly outside the plane.
  static void window(
      const float* from, const Axis& columns, int64_t first, int64_t last, int64_t i, float* best, int32_t* place) {
    const int64_t left = i * columns.stride - columns.padding;
    const int64_t begin = std::max<int64_t>(left, 0), end = std::min(left + columns.kernel, columns.size);
    *best = -std::numeric_limits<float>::infinity();
    *place = static_cast<int32_t>(first * columns.size + begin);
    for (int64_t y = first; y < last; ++y) {
      for (int64_t x = begin; x < end; ++x) {
        const float value = from[y * columns.size + x];
        if (!(value > *best || value != value)) continue;
        *best = value;
        *place = static_cast<int32_t>(y * columns.size + x);
      }
    }
  }
};

// The gradient of ReLU. Where the incoming gradient lies in another order of memory than ReLU's result, as behind slices
// and means in `channels_last`, torch branches on every element, twenty times as slow: reorder the gradient first.
class ReluGradient : public Operator {
 public:
  using Operator::Operator;

  static bool is(const c10::OperatorHandle& handle) { return handle.operator_name().name == "aten::threshold_backward"; }

  void run(Slots& slots) override {
    const at::Tensor& gradient = slots[reads[0]];
    const at::Tensor& result = slots[reads.back()];
    if (makes[0] == kNone || !is_mixed(gradient, result)) return Operator::run(slots);
    slots[makes[0]] = at::threshold_backward(
        at::empty_like(result, gradient.options()).copy_(gradient), result, arguments_[2].constant.toScalar());
  }

 private:
  // Whether the gradient's elements are apart where those of the result are neighbours.
  static bool is_mixed(const at::Tensor& gradient, const at::Tensor& result) {
    if (gradient.sizes() != result.sizes() || !result.is_non_overlapping_and_dense()) return false;
    for (int64_t dim = 0; dim < result.dim(); ++dim) {
      if (result.size(dim) > 1 && result.stride(dim) == 1) return gradient.stride(dim) > 1;
    }
    return false;
  }
};

// A recurrent layer of oneDNN, which keeps the state for its backward pass only if gradients are enabled.
class RecurrentLayer : public Operator {
 public:
  using Operator::Operator;

  static bool is(const c10::OperatorHandle& handle) { return handle.operator_name().name == "aten::mkldnn_rnn_layer"; }

  void run(Slots& slots) override {
    const c10::AutoGradMode enabled(true);
    Operator::run(slots);
  }
};

// A part of a step graph, compiled into a library by AOTInductor.
class Region : public Node {
 public:
  Region(const std::string& library, std::vector<int> reads, std::vector<int> makes)
      : Node(std::move(reads), std::move(makes)), runner_(library, /*num_models=*/1) {}

  void run(Slots& slots) override {
    std::vector<at::Tensor> inputs;
    inputs.reserve(reads.size());
    for (int slot : reads) {
      const at::Tensor& value = slots[slot];
      const bool is_stored = !value.is_conj() && !value.is_neg();  // else its memory, which compiled code reads, differs
      inputs.push_back(is_stored ? value : copied(value));
    }
    std::vector<at::Tensor> outputs = runner_.run(inputs);
    for (size_t i = 0; i < makes.size(); ++i) {
      if (makes[i] != kNone) slots[makes[i]] = std::move(outputs.at(i));
    }
  }

 private:
  static at::Tensor copied(const at::Tensor& value) {  // with the same strides
    at::Tensor once = value;  // of expanded dimensions
    for (int64_t dim = 0; dim < value.dim(); ++dim) {
      if (value.stride(dim) == 0 && value.size(dim) > 1) once = once.narrow(dim, 0, 1);
    }
    return once.new_empty_strided(once.sizes(), once.strides()).copy_(once).expand(value.sizes());
  }

  torch::inductor::AOTIModelContainerRunnerCpu runner_;
};

// Whether all numbers are finite, tested by their exponents: independent operations, unlike a sum.
template <typename T>
bool all_finite(const T* data, int64_t n) {
  typename Stored<T>::Bits found = 0;
  for (int64_t i = 0; i < n; ++i) found |= not_finite(data[i]);
  return found == 0;
}

inline bool all_finite(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return all_finite(tensor.contiguous());
  const int64_t n = tensor.numel();
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return all_finite(tensor.const_data_ptr<float>(), n);
    case at::kDouble:
      return all_finite(tensor.const_data_ptr<double>(), n);
    case at::kBFloat16:
      return all_finite(reinterpret_cast<const uint16_t*>(tensor.const_data_ptr<at::BFloat16>()), n);
    default:
      return tensor.isfinite().all().item<bool>();
  }
}

// Whether equal memory means equal numbers: conjugation and negation may be bits of a tensor.
inline bool stored_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

inline void copy_into(const at::Tensor& target, const at::Tensor& source) {
  if (stored_alike(target, source) && target.is_contiguous() && source.is_contiguous() &&
      target.numel() == source.numel()) {
    std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), target.nbytes());
  } else {
    target.copy_(source);
  }
}

// The outcome of a learning task.
struct TaskOutcome {
  bool active = false;  // whether the learner has a batch
  double loss = std::numeric_limits<double>::quiet_NaN();
  bool finite = false;  // loss and gradient are finite
  std::vector<double> metrics;
  std::vector<at::Tensor> gradients;  // by piece, with the layout of the row
};

// The destination of one parameter's gradient.
struct GradientSlot {
  int slot;
  at::Tensor view;  // into the row of G
  int64_t offset;   // in the row
};

// The end of a learning task: read its loss, check its gradient and, if requested, copy it into G.
class Finish : public Node {
 public:
  Finish(
      std::shared_ptr<TaskOutcome> outcome, int loss, std::vector<int> metrics, std::vector<GradientSlot> gradients,
      bool into_row, std::vector<int> reads)
      : Node(std::move(reads), {}),
        outcome_(std::move(outcome)),
        loss_(loss),
        metrics_(std::move(metrics)),
        gradients_(std::move(gradients)),
        into_row_(into_row) {}

  void run(Slots& slots) override {
    outcome_->loss = slots[loss_].item<double>();
    bool finite = std::isfinite(outcome_->loss);
    outcome_->gradients.clear();
    for (const GradientSlot& piece : gradients_) {
      const at::Tensor& made = slots[piece.slot];
      finite = finite && all_finite(made);
      // SGD reads the gradient in place if its layout is that of the row.
      const bool in_place = !into_row_ && made.strides() == piece.view.strides() && stored_alike(made, piece.view);
      if (!in_place) copy_into(piece.view, made);
      outcome_->gradients.push_back(in_place ? made : piece.view);
    }
    outcome_->finite = finite;
    outcome_->metrics.clear();
    for (int slot : metrics_) outcome_->metrics.push_back(slots[slot].item<double>());
  }

  const std::vector<GradientSlot>& gradients() const { return gradients_; }

 private:
  std::shared_ptr<TaskOutcome> outcome_;
  int loss_;
  std::vector<int> metrics_;
  std::vector<GradientSlot> gradients_;
  bool into_row_;
};

// Write the values that persist between rounds (a learner's buffers), once no learning task can fail any more. Those of
// a learning task whose loss or gradient is not finite are discarded with its step.
class Commit : public Node {
 public:
  Commit(
      std::shared_ptr<TaskOutcome> outcome, std::vector<std::pair<int, at::Tensor>> targets, std::vector<int> reads)
      : Node(std::move(reads), {}), outcome_(std::move(outcome)), targets_(std::move(targets)) {}

  void run(Slots& slots) override {
    if (!outcome_->finite) return;
    std::vector<at::Tensor> values;
    for (auto& [slot, target] : targets_) {
      const at::Tensor& value = slots[slot];
      values.push_back(is_overwritten(value) ? value.clone() : value);
    }
    for (size_t i = 0; i < targets_.size(); ++i) copy_into(targets_[i].second, values[i]);
  }

 private:
  // Whether a value aliases one of the targets: buffers may be swapped.
  bool is_overwritten(const at::Tensor& value) const {
    for (const auto& target : targets_) {
      if (value.is_alias_of(target.second)) return true;
    }
    return false;
  }

  std::shared_ptr<TaskOutcome> outcome_;
  std::vector<std::pair<int, at::Tensor>> targets_;
};

// State of the step and the averaging of a round; shared by the executors, each of which processes its own columns.
struct RowState {
  std::vector<Averaging> numbers;          // by learner, or one for all; averaging is the same for all
  at::Tensor weights, z, z_prev;           // rows [learners, parameters]
  std::vector<at::Tensor> moments;         // rows of optimizer state: momenta; for Adam means and squares
  std::vector<at::Tensor> counts;          // Adam's step counts, by learner
  bool follows = false;                    // z is the weights of the only learner, as they were before the step
  at::Tensor total;                        // sum of the corrections of all devices; undefined for a single device
  std::vector<std::shared_ptr<TaskOutcome>> outcomes;  // by learner
  std::vector<std::vector<int64_t>> offsets;           // by learner: offsets of the pieces of its gradient
  std::vector<std::unique_ptr<bool[]>> overflowed;     // by part, by learner: the step made a weight infinite or NaN

  bool has_overflowed(size_t learner) const {
    return std::any_of(overflowed.begin(), overflowed.end(), [&](const auto& part) { return part[learner]; });
  }
};

class Average : public Node {
 public:
  Average(std::shared_ptr<RowState> state, int part, int parts)
      : Node({}, {}), state_(std::move(state)), part_(part), parts_(parts) {
    state_->overflowed.resize(parts);
  }

  void run(Slots&) override {
    if (state_->weights.scalar_type() == at::kFloat) {
      run_as<float>();
    } else {
      TORCH_CHECK(state_->weights.scalar_type() == at::kDouble, "rows must be float32 or float64");
      run_as<double>();
    }
  }

 private:
  template <typename T>
  void run_as() {
    const RowState& state = *state_;
    const int64_t columns = state.z.numel(), stride = state.weights.stride(0);
    // Whole blocks, so that no two executors write to the same cache line.
    const int64_t blocks = (columns + kBlock - 1) / kBlock;
    const int64_t begin = blocks * part_ / parts_ * kBlock;
    const int64_t end = std::min(blocks * (part_ + 1) / parts_ * kBlock, columns);
    T* weights = state.weights.mutable_data_ptr<T>();
    T* momenta = state.moments.front().mutable_data_ptr<T>();
    T* squares = state.moments.back().mutable_data_ptr<T>();
    const int64_t kept_stride = state.moments.front().stride(0);
    std::vector<std::vector<Piece<T>>> pieces(state.outcomes.size());
    std::vector<LearnerRow<T>> rows;
    std::unique_ptr<bool[]>& overflowed = state_->overflowed[part_];
    overflowed = std::make_unique<bool[]>(state.outcomes.size());
    for (size_t j = 0; j < state.outcomes.size(); ++j) {
      const TaskOutcome& outcome = *state.outcomes[j];
      const bool steps = outcome.active && outcome.finite;
      for (size_t i = 0; steps && i < outcome.gradients.size(); ++i) {
        const at::Tensor& gradient = outcome.gradients[i];
        pieces[j].push_back({state.offsets[j][i], gradient.numel(), gradient.const_data_ptr<T>()});
      }
      const Averaging& numbers = state.numbers[state.numbers.size() == 1 ? 0 : j];
      T *own_momenta = momenta + j * kept_stride, *own_squares = squares + j * kept_stride;
      rows.push_back({weights + j * stride, own_momenta, own_squares, &pieces[j], steps, &overflowed[j], &numbers});
      if (steps && numbers.is_adam && part_ == 0) state.counts[j].add_(1);  // `numbers` already include it
    }
    T* z_prev = state.z_prev.defined() ? state.z_prev.mutable_data_ptr<T>() : nullptr;
    T* z = state.z.mutable_data_ptr<T>();
    if (state.follows) std::copy(weights + begin, weights + end, z + begin);
    const T* total = state.total.defined() ? state.total.const_data_ptr<T>() : nullptr;
    average_columns<T>(rows, z, z_prev, total, begin, end, state.numbers.front());
  }

  std::shared_ptr<RowState> state_;
  int part_;
  int parts_;
};

// Write the sum of the corrections of all rows [learners, parameters] to `total`, using the threads of operators.
inline void contribute(const at::Tensor& weights, const at::Tensor& z, const at::Tensor& total, double alpha) {
  constexpr int64_t kGrain = 16;  // smallest number of blocks per thread
  const int64_t blocks = (z.numel() + kBlock - 1) / kBlock;
  const auto run = [&]<typename T>(T) {
    const T *w = weights.const_data_ptr<T>(), *center = z.const_data_ptr<T>();
    T* sums = total.mutable_data_ptr<T>();
    at::parallel_for(0, blocks, kGrain, [&](int64_t begin, int64_t end) {
      const int64_t last = std::min(end * kBlock, z.numel());
      contribution<T>(w, weights.stride(0), weights.size(0), center, sums, begin * kBlock, last, alpha);
    });
  };
  if (weights.scalar_type() == at::kFloat) {
    run(float());
  } else {
    TORCH_CHECK(weights.scalar_type() == at::kDouble, "rows must be float32 or float64");
    run(double());
  }
}

}  // namespace bow
