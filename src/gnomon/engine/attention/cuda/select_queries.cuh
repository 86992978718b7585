// Queries as B operands in shared memory, and what is to know of each.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "select_exact.cuh"
#include "select_work.cuh"

namespace {

// Note where a query's history ends. A NaN query has no scores to choose by.
template <typename S>
__device__ __forceinline__ void note_query(const Params& p, S& s, int n, bool known, int row,
                                           bool nan) {
  const int64_t at = p.positions[row], request = p.request[row];
  const bool lives = known && at >= 0 && request >= 0;
  const bool selects = lives && !__any_sync(~0u, nan);
  if (threadIdx.x % 32 == 0) {
    s.stop[n] = selects ? static_cast<int>(at / kTokens) + 1 - p.local : 0;
    s.at[n] = lives ? static_cast<int>(at) : -1;
  }
}

// Put a tile's queries into shared memory as B operands, a warp a query.
template <int N, bool kNv, typename S>
__device__ void load_queries(const Params& p, S& s, int2 bounds) {
  constexpr int kColumns = Shape<N, kNv>::kColumns;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int queries = bounds.y * p.heads;
  const uint32_t* q =
      static_cast<const uint32_t*>(p.q) + static_cast<int64_t>(bounds.x) * p.heads * 32;
#pragma unroll
  for (int n = warp; n < N; n += kScorers) {
    const uint32_t word = n < queries ? q[n * 32 + lane] : 0;
    bool nan = false;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const uint8_t value = word >> (8 * b);
      nan |= (value & 0x7F) == 0x7F;
      const int e = 4 * lane + b, group = e / 32, k = e % 32 / 2, odd = e % 2;
#pragma unroll
      for (int copy = 0; copy < kColumns / N; ++copy) {
        const int column = n + copy * N;
        const bool here = !kNv || (k >= 8) == (copy == 1);
        s.queries[group * 32 * kColumns + odd * 16 * kColumns + column / 8 * 128 + column % 8 * 16 +
                  k] = here ? value : 0;
      }
    }
    note_query(p, s, n, n < queries, bounds.x + (n < queries ? n / p.heads : 0), nan);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same for exact products: bf16 queries (one term) or fp16 ones (two).
template <int N, int kTerms, typename S>
__device__ void load_exact_queries(const Params& p, S& s, int2 bounds) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int queries = bounds.y * p.heads;
  const uint16_t* q =
      static_cast<const uint16_t*>(p.q) + static_cast<int64_t>(bounds.x) * p.heads * 128;
#pragma unroll
  for (int n = warp; n < N; n += kScorers) {
    bool nan = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = 32 * i + lane;
      const uint16_t bits = n < queries ? q[n * 128 + e] : 0;
      uint16_t* to = reinterpret_cast<uint16_t*>(s.queries + exact_place<N>(e) + n / 8 * 128 +
                                                 n % 8 * 16);
      if constexpr (kTerms == 1) {
        nan |= (bits & 0x7FFF) > 0x7F80;
        *to = bits;
      } else {
        const float value = __half2float(__ushort_as_half(bits));
        const __nv_bfloat16 high = __float2bfloat16_rn(value);
        const float rest = value - __bfloat162float(high);  // NaN for an infinite value
        nan |= value != value;
        *to = __bfloat16_as_ushort(high);
        to[128 * N] = rest == rest ? __bfloat16_as_ushort(__float2bfloat16_rn(rest)) : 0;
      }
    }
    note_query(p, s, n, n < queries, bounds.x + (n < queries ? n / p.heads : 0), nan);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace
