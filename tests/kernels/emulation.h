// CUDA as far as the kernels of `kernels/` use it, on the CPU: g++ compiles their very text behind this header, and
// `BOW_LAUNCH` calls a kernel for one thread after another. That is exact for kernels whose threads neither share
// memory nor wait for each other; `backwards` runs them in the opposite order, which must change nothing.
//
// What a GPU would refuse is noticed: a `__trap()`, and, with `-fsanitize=alignment`, an access whose address is no
// multiple of its size.
#pragma once

#include <cmath>
#include <csetjmp>
#include <cstring>

#define __global__
#define __device__
#define __launch_bounds__(...)

struct dim3 {
  unsigned int x = 1, y = 1, z = 1;
};
inline thread_local dim3 blockIdx, threadIdx, blockDim, gridDim;

using std::pow;
using std::sqrt;

struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};

inline unsigned int __float_as_uint(float x) {
  unsigned int bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float __uint_as_float(unsigned int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

namespace emulation {

enum Status { kDone = 0, kTrapped = 1, kMisaligned = 2 };

// Where a kernel goes that must not go on; the processor would stop the whole process at a misaligned access.
inline thread_local std::jmp_buf stop;

template <typename Kernel>
int run(unsigned int blocks, unsigned int threads, bool backwards, Kernel kernel) {
  gridDim = {blocks};
  blockDim = {threads};
  const unsigned long long all = static_cast<unsigned long long>(blocks) * threads;
  const int status = setjmp(stop);
  if (status != kDone) return status;
  for (unsigned long long i = 0; i < all; ++i) {
    const unsigned long long thread = backwards ? all - 1 - i : i;
    blockIdx = {static_cast<unsigned int>(thread / threads), 0, 0};
    threadIdx = {static_cast<unsigned int>(thread % threads), 0, 0};
    kernel();
  }
  return kDone;
}

}  // namespace emulation

inline void __trap() { std::longjmp(emulation::stop, emulation::kTrapped); }

// g++ calls this in front of an access that is misaligned.
extern "C" void __ubsan_handle_type_mismatch_v1(void*, void*) { std::longjmp(emulation::stop, emulation::kMisaligned); }

// Arguments arrive as `cuLaunchKernel` takes them: the address of each.
#define BOW_LAUNCH(kernel, ...)                                                                                      \
  extern "C" int launch_##kernel(unsigned int blocks, unsigned int threads, int backwards, void** arguments) {       \
    return emulation::run(blocks, threads, backwards, [&] { kernel(__VA_ARGS__); });                                 \
  }
#define BOW_ARGUMENT(index, type) *static_cast<type*>(arguments[index])
