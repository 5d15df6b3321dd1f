// Element types of the rows, and 16-byte loads and stores. No standard headers, so that NVRTC compiles it without an
// include path; an include guard instead of `#pragma once`, because the text is also pasted into other sources.
#ifndef BOW_DTYPES_CUH
#define BOW_DTYPES_CUH

// The upper half of the bits of a float.
struct bfloat16 {
  unsigned short bits;
};

// The type in which an element type is computed.
template <typename T>
struct Arithmetic {
  using type = T;
};
template <>
struct Arithmetic<bfloat16> {
  using type = float;
};

template <typename T>
__device__ inline T widen(T x) {
  return x;
}

__device__ inline float widen(bfloat16 x) { return __uint_as_float(static_cast<unsigned int>(x.bits) << 16); }

template <typename T>
__device__ inline T narrow(typename Arithmetic<T>::type x) {
  return x;
}

// Round to nearest, ties to even; NaN stays NaN whatever its lower bits are.
template <>
__device__ inline bfloat16 narrow<bfloat16>(float x) {
  unsigned int bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    bits |= 0x00400000u;
  } else {
    bits += 0x7fffu + ((bits >> 16) & 1u);
  }
  return bfloat16{static_cast<unsigned short>(bits >> 16)};
}

// N neighbouring elements, moved by one instruction.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <typename T, int N>
using Values = Pack<typename Arithmetic<T>::type, N>;

template <int N, typename T>
__device__ inline Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <typename T, int N>
__device__ inline Values<T, N> widen(const Pack<T, N>& pack) {
  Values<T, N> values;
#pragma unroll
  for (int i = 0; i < N; ++i) values.at[i] = widen(pack.at[i]);
  return values;
}

template <typename T, int N>
__device__ inline void store(T* to, const Pack<typename Arithmetic<T>::type, N>& values) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.at[i] = narrow<T>(values.at[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

__device__ inline unsigned long long address(const void* pointer) {
  return reinterpret_cast<unsigned long long>(pointer);
}

// Whether all of these addresses and lengths in bytes are multiples of 16.
template <typename... Bytes>
__device__ inline bool in_steps_of_16(Bytes... bytes) {
  return ((static_cast<unsigned long long>(bytes) | ...) & 15u) == 0;
}

__device__ inline long long thread_index() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ inline long long num_threads() { return static_cast<long long>(gridDim.x) * blockDim.x; }

template <int N>
struct Width {
  static constexpr int value = N;
};

// Call body(Width<N>, column) for every N adjacent columns: 16 bytes where rows are `aligned`, otherwise, and at the
// end of a row, single columns. Every column is processed by one thread.
template <typename T, typename Body>
__device__ inline void for_columns(long long columns, bool aligned, Body body) {
  constexpr int kWidth = 16 / sizeof(T);
  const long long packs = aligned ? columns / kWidth : 0;
  // Most threads run one iteration; unrolling would only cost registers.
#pragma unroll 1
  for (long long i = thread_index(); i < packs; i += num_threads()) body(Width<kWidth>{}, i * kWidth);
#pragma unroll 1
  for (long long i = packs * kWidth + thread_index(); i < columns; i += num_threads()) body(Width<1>{}, i);
}

#endif
