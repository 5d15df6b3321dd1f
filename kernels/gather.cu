// Gather the rows of a data set that a batch consists of, of any element type:
//
//     destination[i] = source[indices[i]]
//
// Layout: both are rows of `row_bytes` bytes without gaps; indices are 64-bit integers below `source_rows`. An index
// out of range traps, which destroys the CUDA context, as in PyTorch.
// Launch: 256 threads per block, any number of blocks; a thread copies 16 bytes at a time where both addresses and the
// row length allow, else 4, else 1. Memory traffic: every gathered row is read and written once.
#include "dtypes.cuh"

template <typename Unit>
__device__ inline void copy_rows(
    Unit* __restrict__ destination, const Unit* __restrict__ source, const long long* __restrict__ indices,
    long long units, long long rows, long long source_rows) {
  const long long total = rows * units;
  for (long long i = thread_index(); i < total; i += num_threads()) {
    // 64-bit division takes longer than the copy.
    const long long row =
        total <= 0xffffffffLL ? static_cast<unsigned int>(i) / static_cast<unsigned int>(units) : i / units;
    const long long index = indices[row];
    if (index < 0 || index >= source_rows) __trap();
    destination[i] = source[index * units + (i - row * units)];
  }
}

extern "C" __global__ void __launch_bounds__(256) gather(
    void* __restrict__ destination, const void* __restrict__ source, const long long* __restrict__ indices,
    long long row_bytes, long long rows, long long source_rows) {
  const unsigned long long all = address(destination) | address(source) | static_cast<unsigned long long>(row_bytes);
  if ((all & 15u) == 0) {
    copy_rows(
        static_cast<uint4*>(destination), static_cast<const uint4*>(source), indices, row_bytes / 16, rows,
        source_rows);
  } else if ((all & 3u) == 0) {
    copy_rows(
        static_cast<unsigned int*>(destination), static_cast<const unsigned int*>(source), indices, row_bytes / 4,
        rows, source_rows);
  } else {
    copy_rows(
        static_cast<unsigned char*>(destination), static_cast<const unsigned char*>(source), indices, row_bytes, rows,
        source_rows);
  }
}
