// Lists of the best pages: entries with an order, and how a warp picks the first of many.

#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

struct Entry {
  uint32_t score;  // order-preserving map of the fp32 score; 0: nothing
  uint32_t block;
};

namespace {

__device__ __forceinline__ uint32_t ordered(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 counts as +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ bool better(const Entry& a, const Entry& b) {
  return a.score > b.score || (a.score == b.score && a.block < b.block);
}

// The best `wanted` of a warp's 32 * K entries, best first: lane i returns the i-th. Each lane sorts
// its own, and the best of the lanes' heads is taken again and again: a short chain of steps.
template <int K>
__device__ Entry best_of(Entry (&e)[K], int wanted, int lane) {
#pragma unroll
  for (int i = 0; i < K - 1; ++i)
#pragma unroll
    for (int k = 0; k < K - 1 - i; ++k)
      if (better(e[k + 1], e[k])) {
        const Entry swap = e[k];
        e[k] = e[k + 1];
        e[k + 1] = swap;
      }
  Entry mine = {0, 0};
  for (int i = 0; i < wanted; ++i) {
    const uint32_t top = __reduce_max_sync(~0u, e[0].score);
    if (top == 0) break;
    unsigned owners = __ballot_sync(~0u, e[0].score == top);
    uint32_t block = __shfl_sync(~0u, e[0].block, __ffs(owners) - 1);
    if (owners & (owners - 1)) {
      block = __reduce_min_sync(~0u, e[0].score == top ? e[0].block : ~0u);
      owners = __ballot_sync(~0u, e[0].score == top && e[0].block == block);
    }
    if (lane == i) mine = {top, block};
    if (owners >> lane & 1) {
#pragma unroll
      for (int k = 0; k < K - 1; ++k) e[k] = e[k + 1];
      e[K - 1] = {0, 0};
    }
  }
  return mine;
}

__device__ __forceinline__ Entry read_part(const Entry* at) {
  const uint2 raw = __ldcg(reinterpret_cast<const uint2*>(at));
  return {raw.x, raw.y};
}

}  // namespace
