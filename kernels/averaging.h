// One step of SGD with momentum, or of Adam, for every learner and, in rounds that synchronise, the synchronisation
// task of SMA, in one pass:
//
//     SGD   g   = g_j + weight_decay * w_j
//           v_j = momentum * v_j + g               step_j = lr * (nesterov ? g + momentum * v_j : v_j)
//     Adam  g   = g_j + weight_decay * w_j         (AdamW: g_j, and weights shrink by lr * weight_decay)
//           v_j = v_j + (1 - beta1) * (g - v_j)    s_j = beta2 * s_j + (1 - beta2) * g * g
//                                                  step_j = lr' * v_j / (sqrt(s_j) / root + epsilon)
//           with lr' = lr / (1 - beta1^t) and root = sqrt(1 - beta2^t) in a learner's step t
//     c_j = alpha * (w_j - z)                      w_j before its step
//     w_j = w_j - step_j - c_j
//     z'  = z + sum_j c_j + mu * (z - z_prev);     z_prev = z;     z = z'
//
// With several devices, `contribution` computes a device's sum before the learning tasks; the AllReduce overlaps with
// them, and its result is passed as `total`.
//
// Layout: w, v and s are rows `[learners, stride]`; a gradient is one buffer per parameter, as the learning task left
// it, and is never copied into a row. Columns are independent of each other and are divided among executors.
// Memory traffic per column and learner: w, v, s read and written, g read; per column z, z_prev read and written.
//
// Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019, Algorithm 2.
// Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 2.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace bow {

// Hyperparameters, which may change from round to round.
struct Averaging {
  double lr = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  double alpha = 0, mu = 0;
  bool synchronise = false;
  bool is_adam = false;  // then `momentum` is beta1, `lr` is lr', and:
  double beta2 = 0, epsilon = 0, root = 1;
  double shrunk = 1;  // factor of the weights before the step
};

// A parameter's range in the row, and its gradient.
template <typename T>
struct Piece {
  int64_t offset;
  int64_t numel;
  const T* gradient;
};

template <typename T>
struct LearnerRow {
  T* weights;
  T* momenta;                     // unused where momentum is 0
  T* squares;                     // Adam only
  const std::vector<Piece<T>>* pieces;  // sorted by offset, without gaps up to the padding of the row
  bool steps;                     // false: no batch or diverged, takes part in the averaging only
  bool* overflowed;               // set if the step makes a weight infinite or NaN
  const Averaging* numbers;       // of its step: each learner may have its own settings
};

// The bits of a floating-point type, and its exponent bits: all set if a number is infinite or NaN.
template <typename T>
struct Stored;
template <>
struct Stored<float> {
  using Bits = uint32_t;
  static constexpr Bits kExponent = 0x7f800000;
};
template <>
struct Stored<double> {
  using Bits = uint64_t;
  static constexpr Bits kExponent = 0x7ff0000000000000;
};
template <>
struct Stored<uint16_t> {  // bfloat16, as bits
  using Bits = uint16_t;
  static constexpr Bits kExponent = 0x7f80;
};

// 1 for an infinite number or NaN, else 0; free of branches, so that loops over it are vectorised.
template <typename T>
inline typename Stored<T>::Bits not_finite(T x) {
  using Bits = typename Stored<T>::Bits;
  return static_cast<Bits>((std::bit_cast<Bits>(x) & Stored<T>::kExponent) == Stored<T>::kExponent);
}

constexpr int64_t kBlock = 1024;  // columns per block: z and the sums stay in the L1 cache

// Step `n` columns of one learner; `c` accumulates the corrections. Without momentum or without averaging, the buffers
// not needed are not accessed. Returns whether a weight became infinite or NaN.
template <bool kMomentum, bool kAverage, typename T>
bool step_and_correct(
    T* __restrict__ w, T* __restrict__ v, T*, const T* __restrict__ g, const T* __restrict__ z, T* __restrict__ c,
    int64_t n, const Averaging& a) {
  const T lr = static_cast<T>(a.lr), momentum = static_cast<T>(a.momentum), decay = static_cast<T>(a.weight_decay);
  const T alpha = static_cast<T>(a.alpha);
  const T look_ahead = a.nesterov ? momentum : T(1), own = a.nesterov ? T(1) : T(0);
  typename Stored<T>::Bits left = 0;
  for (int64_t i = 0; i < n; ++i) {
    T step = g[i] + decay * w[i];
    if constexpr (kMomentum) {
      const T velocity = momentum * v[i] + step;
      v[i] = velocity;
      step = own * step + look_ahead * velocity;
    }
    T moved = w[i] - lr * step;
    if constexpr (kAverage) {
      const T correction = alpha * (w[i] - z[i]);
      c[i] += correction;
      moved -= correction;
    }
    w[i] = moved;
    left |= not_finite(moved);
  }
  return left != 0;
}

// The same with Adam.
template <bool kAverage, typename T>
bool adam_and_correct(
    T* __restrict__ w, T* __restrict__ v, T* __restrict__ s, const T* __restrict__ g, const T* __restrict__ z,
    T* __restrict__ c, int64_t n, const Averaging& a) {
  const T lr = static_cast<T>(a.lr), decay = static_cast<T>(a.weight_decay), shrunk = static_cast<T>(a.shrunk);
  const T beta2 = static_cast<T>(a.beta2), epsilon = static_cast<T>(a.epsilon), root = static_cast<T>(a.root);
  const T first = static_cast<T>(1 - a.momentum), second = static_cast<T>(1 - a.beta2), alpha = static_cast<T>(a.alpha);
  typename Stored<T>::Bits left = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] + decay * w[i];
    const T mean = v[i] + first * (gradient - v[i]);
    const T square = beta2 * s[i] + second * gradient * gradient;
    v[i] = mean;
    s[i] = square;
    T moved = shrunk * w[i] - lr * mean / (std::sqrt(square) / root + epsilon);
    if constexpr (kAverage) {
      const T correction = alpha * (w[i] - z[i]);
      c[i] += correction;
      moved -= correction;
    }
    w[i] = moved;
    left |= not_finite(moved);
  }
  return left != 0;
}

template <typename T>
auto step_kernel(const Averaging& a) {
  if (a.is_adam) return a.synchronise ? adam_and_correct<true, T> : adam_and_correct<false, T>;
  if (a.momentum != 0) return a.synchronise ? step_and_correct<true, true, T> : step_and_correct<true, false, T>;
  return a.synchronise ? step_and_correct<false, true, T> : step_and_correct<false, false, T>;
}

// `n` columns of one learner that does not step.
template <typename T>
void correct(T* __restrict__ w, const T* __restrict__ z, T* __restrict__ c, int64_t n, T alpha) {
  for (int64_t i = 0; i < n; ++i) {
    const T correction = alpha * (w[i] - z[i]);
    c[i] += correction;
    w[i] -= correction;
  }
}

// `n` columns of the central model.
template <typename T>
void move_central(T* __restrict__ z, T* __restrict__ z_prev, const T* __restrict__ c, int64_t n, T mu) {
  for (int64_t i = 0; i < n; ++i) {
    const T next = z[i] + c[i] + mu * (z[i] - z_prev[i]);
    z_prev[i] = z[i];
    z[i] = next;
  }
}

// Step and average columns `begin` to `end` of all learners; `a` holds the settings of the averaging. `z_prev` is only
// accessed when synchronising. `total` is the sum of the corrections of all devices, null for a single device. The
// padding at the end of a row belongs to no parameter and stays zero.
template <typename T>
void average_columns(
    const std::vector<LearnerRow<T>>& learners, T* z, T* z_prev, const T* total, int64_t begin, int64_t end,
    const Averaging& a) {
  T sums[kBlock];
  for (int64_t from = begin; from < end; from += kBlock) {
    const int64_t to = std::min(from + kBlock, end);
    std::fill(sums, sums + (to - from), T(0));
    for (const LearnerRow<T>& learner : learners) {
      if (!learner.steps) {
        if (a.synchronise) correct(learner.weights + from, z + from, sums, to - from, static_cast<T>(a.alpha));
        continue;
      }
      const auto step = step_kernel<T>(*learner.numbers);
      auto after = [](int64_t column, const Piece<T>& piece) { return column < piece.offset + piece.numel; };
      auto piece = std::upper_bound(learner.pieces->begin(), learner.pieces->end(), from, after);
      for (; piece != learner.pieces->end() && piece->offset < to; ++piece) {
        const int64_t first = std::max(from, piece->offset), last = std::min(to, piece->offset + piece->numel);
        *learner.overflowed |= step(
            learner.weights + first, learner.momenta + first, learner.squares + first,
            piece->gradient + (first - piece->offset), z + first, sums + (first - from), last - first, *learner.numbers);
      }
    }
    const T* moves = total == nullptr ? sums : total + from;
    if (a.synchronise) move_central(z + from, z_prev + from, moves, to - from, static_cast<T>(a.mu));
  }
}

// Add up `n` columns of one learner's corrections.
template <typename T>
void add_correction(const T* __restrict__ w, const T* __restrict__ z, T* __restrict__ sums, int64_t n, T alpha) {
  for (int64_t i = 0; i < n; ++i) sums[i] += alpha * (w[i] - z[i]);
}

// Compute columns `begin` to `end` of `total`: the sum of the corrections of `learners` rows that are `stride` apart.
template <typename T>
void contribution(
    const T* weights, int64_t stride, int64_t learners, const T* z, T* total, int64_t begin, int64_t end, double alpha) {
  for (int64_t from = begin; from < end; from += kBlock) {
    const int64_t to = std::min(from + kBlock, end);
    std::fill(total + from, total + to, T(0));
    for (int64_t j = 0; j < learners; ++j) {
      add_correction(weights + j * stride + from, z + from, total + from, to - from, static_cast<T>(alpha));
    }
  }
}

}  // namespace bow
