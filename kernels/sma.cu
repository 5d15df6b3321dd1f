// Synchronous model averaging (SMA), SGD with momentum and Adam over the rows of the replica matrix.
//
//     c_j  = alpha * (w_j - z)                        w_j before its step
//     w_j  = w_j - (optimizer's step) - c_j
//     z'   = z + sum_j c_j + mu * (z - z_prev);       z_prev = z;     z = z'
//
// Layout: W, C, M (momentum), G (gradient) are rows `[learners, columns]` with a stride in elements each; z, z_prev
// and the total are single rows. `numbers` are six doubles in device memory, so that replays of a captured CUDA graph
// see new values: lr, momentum, weight_decay, nesterov (0 or 1), alpha, mu.
//
// Launch, for every kernel: 256 threads per block, any number of blocks, no shared memory. A thread processes 16 bytes
// of every row at a time, or single columns where an address or a stride is not a multiple of 16 bytes, and iterates
// over the learners in ascending order: no atomics, deterministic sums. Below, P is bytes per row, k the learners.
//
// Koliousis et al., CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers, 2019.
// Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019, Algorithm 2.
#include "dtypes.cuh"

// Learners whose rows are loaded concurrently: with few columns there are too few threads to hide the latency of
// sequential loads.
constexpr int kTogether = 4;

template <typename A>
struct Numbers {
  A lr, momentum, weight_decay;
  bool nesterov;
  A alpha, mu;

  __device__ explicit Numbers(const double* from)
      : lr(static_cast<A>(from[0])),
        momentum(static_cast<A>(from[1])),
        weight_decay(static_cast<A>(from[2])),
        nesterov(from[3] != 0),
        alpha(static_cast<A>(from[4])),
        mu(static_cast<A>(from[5])) {}
};

// The step of `torch.optim.SGD`, which is subtracted from a weight. Without momentum `m` is 0 and is not stored.
template <typename A>
__device__ inline A sgd_step(const Numbers<A>& numbers, A w, A g, A& m) {
  const A gradient = g + numbers.weight_decay * w;
  m = numbers.momentum * m + gradient;
  return numbers.lr * (numbers.nesterov ? gradient + numbers.momentum * m : m);
}

// The next value of z, given the sum of the corrections.
template <typename A, int N>
__device__ inline Pack<A, N> moved_central(const Pack<A, N>& z, const Pack<A, N>& z_prev, const Pack<A, N>& sum, A mu) {
  Pack<A, N> next;
#pragma unroll
  for (int i = 0; i < N; ++i) next.at[i] = z.at[i] + sum.at[i] + mu * (z.at[i] - z_prev.at[i]);
  return next;
}

// Load up to kTogether rows, starting at `from`.
template <int N, typename T>
__device__ inline void load_rows(Pack<T, N> (&to)[kTogether], const T* from, long long stride, long long rows) {
#pragma unroll
  for (int u = 0; u < kTogether; ++u) {
    if (u < rows) to[u] = load<N>(from + u * stride);
  }
}

// C = alpha * (W - z);  total = sum_j C_j: one device's contribution to the sum over all devices.
// Memory traffic: W and z read, C and total written, (2 k + 2) P.
template <typename T>
__device__ inline void sma_contribute(
    const T* weights, long long weights_stride, const T* z, T* corrections, long long corrections_stride, T* total,
    double alpha_, long long learners, long long columns) {
  using A = typename Arithmetic<T>::type;
  const A alpha = static_cast<A>(alpha_);
  const bool aligned = in_steps_of_16(
      address(weights), address(z), address(corrections), address(total), weights_stride * sizeof(T),
      corrections_stride * sizeof(T));
  for_columns<T>(columns, aligned, [&](auto width, long long column) {
    constexpr int N = decltype(width)::value;
    const Values<T, N> central = widen(load<N>(z + column));
    Values<T, N> sum = {};
    for (long long first = 0; first < learners; first += kTogether) {
      Pack<T, N> w[kTogether];
      load_rows(w, weights + first * weights_stride + column, weights_stride, learners - first);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (first + u >= learners) break;
        Values<T, N> c = widen(w[u]);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          c.at[i] = alpha * (c.at[i] - central.at[i]);
          sum.at[i] += c.at[i];
        }
        store(corrections + (first + u) * corrections_stride + column, c);
      }
    }
    store(total + column, sum);
  });
}

// W -= C;  z' = z + total + mu * (z - z_prev);  z_prev = z;  z = z'. `total` may be the sum over several devices.
// Memory traffic: W read and written, C read, z and z_prev read and written, total read, (3 k + 5) P.
template <typename T>
__device__ inline void sma_apply(
    T* weights, long long weights_stride, const T* corrections, long long corrections_stride, T* z, T* z_prev,
    const T* total, double mu_, long long learners, long long columns) {
  using A = typename Arithmetic<T>::type;
  const A mu = static_cast<A>(mu_);
  const bool aligned = in_steps_of_16(
      address(weights), address(corrections), address(z), address(z_prev), address(total), weights_stride * sizeof(T),
      corrections_stride * sizeof(T));
  for_columns<T>(columns, aligned, [&](auto width, long long column) {
    constexpr int N = decltype(width)::value;
    for (long long first = 0; first < learners; first += kTogether) {
      Pack<T, N> w[kTogether], c[kTogether];
      load_rows(w, weights + first * weights_stride + column, weights_stride, learners - first);
      load_rows(c, corrections + first * corrections_stride + column, corrections_stride, learners - first);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (first + u >= learners) break;
        Values<T, N> moved = widen(w[u]);
        const Values<T, N> correction = widen(c[u]);
#pragma unroll
        for (int i = 0; i < N; ++i) moved.at[i] -= correction.at[i];
        store(weights + (first + u) * weights_stride + column, moved);
      }
    }
    const Values<T, N> before = widen(load<N>(z + column));
    const Values<T, N> next =
        moved_central(before, widen(load<N>(z_prev + column)), widen(load<N>(total + column)), mu);
    store(z_prev + column, before);
    store(z + column, next);
  });
}

// z' = z + sum_j alpha * (w_j - z) + mu * (z - z_prev);  z_prev = z;  z = z'. Only reads the rows: it runs concurrently
// with the learning tasks, after which `sgd_row` corrects each row.
// Memory traffic: W read, z and z_prev read and written, (k + 4) P.
template <typename T>
__device__ inline void sma_center(
    const T* weights, long long weights_stride, T* z, T* z_prev, const double* numbers_, long long learners,
    long long columns) {
  using A = typename Arithmetic<T>::type;
  const Numbers<A> numbers(numbers_);
  const bool aligned = in_steps_of_16(address(weights), address(z), address(z_prev), weights_stride * sizeof(T));
  for_columns<T>(columns, aligned, [&](auto width, long long column) {
    constexpr int N = decltype(width)::value;
    const Values<T, N> central = widen(load<N>(z + column));
    Values<T, N> sum = {};
    for (long long first = 0; first < learners; first += kTogether) {
      Pack<T, N> w[kTogether];
      load_rows(w, weights + first * weights_stride + column, weights_stride, learners - first);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (first + u >= learners) break;
        const Values<T, N> row = widen(w[u]);
#pragma unroll
        for (int i = 0; i < N; ++i) sum.at[i] += numbers.alpha * (row.at[i] - central.at[i]);
      }
    }
    const Values<T, N> next = moved_central(central, widen(load<N>(z_prev + column)), sum, numbers.mu);
    store(z_prev + column, central);
    store(z + column, next);
  });
}

// One learner's row, w, m and g:
//
//     g += weight_decay * w;   m = momentum * m + g;   step = lr * (nesterov ? g + momentum * m : m)
//     w  = w - step - (synchronise ? alpha * (w - z_prev) : 0)
//
// `task` holds [loss, sum of the gradient, metrics...]; the learner is finite if loss and sum are, and `kept` receives
// [loss, 0 or 1, metrics...]. A learner that is not finite restarts: w = z and m = 0. z is read only in this case, and
// z_prev, which is z before `sma_center`, only when synchronising.
// Memory traffic: w, m, g read, w, m written, z_prev read when synchronising, 6 P; without momentum (m unused) 4 P.
template <typename T>
__device__ inline void sgd_row(
    T* weights, T* momenta, const T* gradient, const T* z, const T* z_prev, const typename Arithmetic<T>::type* task,
    typename Arithmetic<T>::type* kept, const double* numbers_, long long width, long long columns,
    long long synchronise) {
  using A = typename Arithmetic<T>::type;
  const Numbers<A> numbers(numbers_);
  const A told = task[0] + task[1];
  const bool steps = told - told == 0;  // inf - inf is NaN
  if (thread_index() == 0) {
    for (long long i = 0; i < width; ++i) kept[i] = i == 1 ? static_cast<A>(steps) : task[i];
  }
  const bool aligned =
      in_steps_of_16(address(weights), address(momenta), address(gradient), address(z), address(z_prev));
  for_columns<T>(columns, aligned, [&](auto width, long long column) {
    constexpr int N = decltype(width)::value;
    Values<T, N> m = {};
    if (!steps) {
      store(weights + column, widen(load<N>(z + column)));
      store(momenta + column, m);
      return;
    }
    const Values<T, N> w = widen(load<N>(weights + column)), g = widen(load<N>(gradient + column));
    Values<T, N> moved;
    if (numbers.momentum != 0) m = widen(load<N>(momenta + column));
#pragma unroll
    for (int i = 0; i < N; ++i) moved.at[i] = w.at[i] - sgd_step(numbers, w.at[i], g.at[i], m.at[i]);
    if (synchronise) {
      const Values<T, N> central = widen(load<N>(z_prev + column));
#pragma unroll
      for (int i = 0; i < N; ++i) moved.at[i] -= numbers.alpha * (w.at[i] - central.at[i]);
    }
    store(weights + column, moved);
    if (numbers.momentum != 0) store(momenta + column, m);
  });
}

// The end of a round: compute the next central model, and restart the learners whose `finite` is 0 from it.
template <typename T, int N>
__device__ inline void end_round(
    T* weights, long long weights_stride, T* z, T* z_prev, const typename Arithmetic<T>::type* finite,
    const Values<T, N>& central, const Values<T, N>& sum, typename Arithmetic<T>::type mu, long long learners,
    long long column, bool synchronise, bool restarts) {
  Values<T, N> next;
  if (synchronise) {
    next = moved_central(central, widen(load<N>(z_prev + column)), sum, mu);
    store(z_prev + column, central);
    store(z + column, next);
  } else if (restarts) {
    next = widen(load<N>(z + column));
  }
  if (!restarts) return;
  for (long long j = 0; j < learners; ++j) {
    if (finite[j] == 0) store(weights + j * weights_stride + column, next);
  }
}

// Return a learner's correction towards the central model, and add it to the sum over all learners.
template <typename A, int N>
__device__ inline Pack<A, N> corrected(const Pack<A, N>& w, const Pack<A, N>& z, A alpha, Pack<A, N>& sum) {
  Pack<A, N> correction;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    correction.at[i] = alpha * (w.at[i] - z.at[i]);
    sum.at[i] += correction.at[i];
  }
  return correction;
}

// A whole round in one pass: the step of `sgd_row` for every learner, the sum of all corrections, and the central
// model. `finite` is 1 for a learner that steps; 0 for one that is not finite, which is part of the sum (its weights
// are finite) and restarts from z', or from z when not synchronising; NaN for one without a batch, which is only
// corrected. z and z_prev are only written when synchronising.
// Memory traffic: W, M, z, z_prev read and written, G read, (5 k + 4) P; without momentum (3 k + 4) P.
template <typename T>
__device__ inline void sgd_round(
    T* weights, long long weights_stride, T* momenta, long long momenta_stride, const T* gradients,
    long long gradients_stride, T* z, T* z_prev, const typename Arithmetic<T>::type* finite, const double* numbers_,
    long long learners, long long columns, long long synchronise) {
  using A = typename Arithmetic<T>::type;
  const Numbers<A> numbers(numbers_);
  const bool aligned = in_steps_of_16(
      address(weights), address(momenta), address(gradients), address(z), address(z_prev), weights_stride * sizeof(T),
      momenta_stride * sizeof(T), gradients_stride * sizeof(T));
  for_columns<T>(columns, aligned, [&](auto width, long long column) {
    constexpr int N = decltype(width)::value;
    const Values<T, N> zeros = {};
    Values<T, N> central = zeros, sum = zeros;
    if (synchronise) central = widen(load<N>(z + column));
    bool restarts = false;
    for (long long first = 0; first < learners; first += kTogether) {
      Pack<T, N> w[kTogether], m[kTogether], g[kTogether];
      load_rows(w, weights + first * weights_stride + column, weights_stride, learners - first);
      load_rows(g, gradients + first * gradients_stride + column, gradients_stride, learners - first);
      if (numbers.momentum != 0) {
        load_rows(m, momenta + first * momenta_stride + column, momenta_stride, learners - first);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (first + u >= learners) break;
        Values<T, N> moved = widen(w[u]), correction = zeros;
        if (synchronise) correction = corrected(moved, central, numbers.alpha, sum);
        T* const momentum = momenta + (first + u) * momenta_stride + column;
        if (finite[first + u] == 0) {
          restarts = true;
          store(momentum, zeros);
          continue;
        }
        if (finite[first + u] == 1) {
          const Values<T, N> gradient = widen(g[u]);
          Values<T, N> velocity = zeros;
          if (numbers.momentum != 0) velocity = widen(m[u]);
#pragma unroll
          for (int i = 0; i < N; ++i) moved.at[i] -= sgd_step(numbers, moved.at[i], gradient.at[i], velocity.at[i]);
          if (numbers.momentum != 0) store(momentum, velocity);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) moved.at[i] -= correction.at[i];
        store(weights + (first + u) * weights_stride + column, moved);
      }
    }
    end_round(weights, weights_stride, z, z_prev, finite, central, sum, numbers.mu, learners, column, synchronise,
              restarts);
  });
}

template <typename A>
struct AdamNumbers {
  A lr, second, epsilon, weight_decay;
  A first_rest, second_rest;  // 1 - first and 1 - second, which float rounds by more than the betas themselves
  bool is_decoupled;
  A alpha, mu;

  __device__ explicit AdamNumbers(const double* from)
      : lr(static_cast<A>(from[0])),
        second(static_cast<A>(from[2])),
        epsilon(static_cast<A>(from[3])),
        weight_decay(static_cast<A>(from[4])),
        first_rest(static_cast<A>(1 - from[1])),
        second_rest(static_cast<A>(1 - from[2])),
        is_decoupled(from[5] != 0),
        alpha(static_cast<A>(from[6])),
        mu(static_cast<A>(from[7])) {}
};

// Exponentiation by squaring: `pow` uses so many registers that others are spilled.
__device__ inline double power(double base, long long exponent) {
  double found = 1;
  for (; exponent; exponent >>= 1, base *= base) {
    if (exponent & 1) found *= base;
  }
  return found;
}

// `sgd_round` with the step of `torch.optim.Adam`, or of AdamW if the decay is decoupled:
//
//     w -= decoupled ? lr * decay * w : 0;   g += decoupled ? 0 : decay * w
//     m += (1 - first) * (g - m);   v = second * v + (1 - second) * g * g;   count += 1
//     w -= lr / (1 - first^count) * m / (sqrt(v) / sqrt(1 - second^count) + epsilon)
//
// `numbers` are lr, first, second, epsilon, decay, decoupled (0 or 1), alpha, mu. Restarting a learner resets its
// moments and its step count to 0. All threads read the step counts, so the next counts are written elsewhere.
// Memory traffic: W and both moments read and written, G read, z and z_prev read and written, (7 k + 4) P.
// Kingma and Ba: Adam: A method for stochastic optimization, 2015, Algorithm 1.
template <typename T>
__device__ inline void adam_round(
    T* weights, long long weights_stride, T* means, long long means_stride, T* squares, long long squares_stride,
    const T* gradients, long long gradients_stride, T* z, T* z_prev, const typename Arithmetic<T>::type* finite,
    const typename Arithmetic<T>::type* counts, typename Arithmetic<T>::type* counts_next, const double* numbers_,
    long long learners, long long columns, long long synchronise) {
  using A = typename Arithmetic<T>::type;
  const AdamNumbers<A> numbers(numbers_);
  if (thread_index() == 0) {
    for (long long j = 0; j < learners; ++j) {
      counts_next[j] = finite[j] == 0 ? A(0) : finite[j] == 1 ? counts[j] + 1 : counts[j];
    }
  }
  const bool aligned = in_steps_of_16(
      address(weights), address(means), address(squares), address(gradients), address(z), address(z_prev),
      weights_stride * sizeof(T), means_stride * sizeof(T), squares_stride * sizeof(T), gradients_stride * sizeof(T));
  for_columns<T>(columns, aligned, [&](auto width, long long column) {
    constexpr int N = decltype(width)::value;
    const Values<T, N> zeros = {};
    Values<T, N> central = zeros, sum = zeros;
    if (synchronise) central = widen(load<N>(z + column));
    bool restarts = false;
#pragma unroll 1
    for (long long j = 0; j < learners; ++j) {
      const long long count = static_cast<long long>(counts[j]) + 1;
      const A size = static_cast<A>(numbers_[0] / (1 - power(numbers_[1], count)));
      const A scale = static_cast<A>(1 / sqrt(1 - power(numbers_[2], count)));
      T* const row = weights + j * weights_stride + column;
      T* const mean = means + j * means_stride + column;
      T* const square = squares + j * squares_stride + column;
      // Four concurrent loads: enough to hide the latency.
      const Pack<T, N> read[] = {load<N>(row), load<N>(mean), load<N>(square),
                                 load<N>(gradients + j * gradients_stride + column)};
      Values<T, N> moved = widen(read[0]), correction = zeros;
      if (synchronise) correction = corrected(moved, central, numbers.alpha, sum);
      if (finite[j] == 0) {
        restarts = true;
        store(mean, zeros);
        store(square, zeros);
        continue;
      }
      if (finite[j] == 1) {
        Values<T, N> m = widen(read[1]), v = widen(read[2]), g = widen(read[3]);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (numbers.is_decoupled) moved.at[i] -= numbers.lr * numbers.weight_decay * moved.at[i];
          else g.at[i] += numbers.weight_decay * moved.at[i];
          m.at[i] += numbers.first_rest * (g.at[i] - m.at[i]);
          v.at[i] = numbers.second * v.at[i] + numbers.second_rest * g.at[i] * g.at[i];
          moved.at[i] -= size * m.at[i] / (sqrt(v.at[i]) * scale + numbers.epsilon);
        }
        store(mean, m);
        store(square, v);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) moved.at[i] -= correction.at[i];
      store(row, moved);
    }
    end_round(weights, weights_stride, z, z_prev, finite, central, sum, numbers.mu, learners, column, synchronise,
              restarts);
  });
}

// The kernels by name, one set per element type. All integers are 64 bits and all scalars doubles, as in Python, so
// that a caller that packs arguments cannot mistake their size.
#define BOW_KERNELS(suffix, T)                                                                                      \
  extern "C" __global__ void __launch_bounds__(256) sma_contribute_##suffix(                                        \
      const T* weights, long long weights_stride, const T* z, T* corrections, long long corrections_stride,         \
      T* total, double alpha, long long learners, long long columns) {                                              \
    sma_contribute(                                                                                                 \
        weights, weights_stride, z, corrections, corrections_stride, total, alpha, learners, columns);              \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) sma_apply_##suffix(                                             \
      T* weights, long long weights_stride, const T* corrections, long long corrections_stride, T* z, T* z_prev,    \
      const T* total, double mu, long long learners, long long columns) {                                           \
    sma_apply(weights, weights_stride, corrections, corrections_stride, z, z_prev, total, mu, learners, columns);   \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) sma_center_##suffix(                                            \
      const T* weights, long long weights_stride, T* z, T* z_prev, const double* numbers, long long learners,       \
      long long columns) {                                                                                          \
    sma_center(weights, weights_stride, z, z_prev, numbers, learners, columns);                                     \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) sgd_row_##suffix(                                               \
      T* weights, T* momenta, const T* gradient, const T* z, const T* z_prev, const Arithmetic<T>::type* task,      \
      Arithmetic<T>::type* kept, const double* numbers, long long width, long long columns, long long synchronise) { \
    sgd_row(weights, momenta, gradient, z, z_prev, task, kept, numbers, width, columns, synchronise);               \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) sgd_round_##suffix(                                             \
      T* weights, long long weights_stride, T* momenta, long long momenta_stride, const T* gradients,               \
      long long gradients_stride, T* z, T* z_prev, const Arithmetic<T>::type* finite, const double* numbers,        \
      long long learners, long long columns, long long synchronise) {                                               \
    sgd_round(                                                                                                      \
        weights, weights_stride, momenta, momenta_stride, gradients, gradients_stride, z, z_prev, finite, numbers,  \
        learners, columns, synchronise);                                                                            \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256, 2) adam_round_##suffix(                                         \
      T* weights, long long weights_stride, T* means, long long means_stride, T* squares, long long squares_stride, \
      const T* gradients, long long gradients_stride, T* z, T* z_prev, const Arithmetic<T>::type* finite,           \
      const Arithmetic<T>::type* counts, Arithmetic<T>::type* counts_next, const double* numbers,                   \
      long long learners, long long columns, long long synchronise) {                                               \
    adam_round(                                                                                                     \
        weights, weights_stride, means, means_stride, squares, squares_stride, gradients, gradients_stride, z,      \
        z_prev, finite, counts, counts_next, numbers, learners, columns, synchronise);                              \
  }

BOW_KERNELS(f32, float)
BOW_KERNELS(f64, double)
BOW_KERNELS(bf16, bfloat16)
