// Lists of the best pages: keys with an order, and how a warp keeps the first of many.

#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

// A page with a score: the order-preserving bits of the fp32 score above, the complement of the
// block below. Larger is better; keys of different blocks differ; 0 is no page.
using Key = uint64_t;

namespace {

constexpr int kKept = 16;  // entries of a list of best pages

__device__ __forceinline__ uint32_t ordered(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 counts as +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ Key key_of(uint32_t score, int block) {
  return static_cast<Key>(score) << 32 | ~static_cast<uint32_t>(block);
}

__device__ __forceinline__ int block_of(Key key) { return ~static_cast<uint32_t>(key); }

// Put the best `wanted` of keys[0..n) in order at keys[0..wanted), for n <= 32 * K; a rank each, by
// counting. keys[n] may be overwritten if n is odd. Returns how many there are.
template <int K>
__device__ int keep_best(Key* keys, int n, int wanted, int lane) {
  Key mine[K];
  int rank[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    mine[k] = 32 * k + lane < n ? keys[32 * k + lane] : 0;
    rank[k] = 0;
  }
  if (n % 2 && lane == 0) keys[n] = 0;
  __syncwarp();
#pragma unroll 4
  for (int i = 0; i < n; i += 2) {
    const ulonglong2 other = *reinterpret_cast<const ulonglong2*>(keys + i);
#pragma unroll
    for (int k = 0; k < K; ++k) rank[k] += (other.x > mine[k]) + (other.y > mine[k]);
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (mine[k] != 0 && rank[k] < wanted) keys[rank[k]] = mine[k];
  __syncwarp();
  return min(n, wanted);
}

// A growing set of keys of which only the best `wanted` matter.
struct Best {
  Key* keys;       // shared memory of a warp, 66 of them
  int n = 0;       // the same in every lane
  Key least = 0;   // what does not reach it is of no interest

  __device__ void add(Key key, int wanted, int lane) {
    const bool here = key != 0 && key >= least;
    const unsigned who = __ballot_sync(~0u, here);
    if (here) keys[n + __popc(who & ((1u << lane) - 1))] = key;
    n += __popc(who);
    __syncwarp();
    if (n > 32) shrink(wanted, lane);
  }

  __device__ void shrink(int wanted, int lane) {
    n = n <= 32 ? keep_best<1>(keys, n, wanted, lane) : keep_best<2>(keys, n, wanted, lane);
    if (n == wanted) least = max(least, keys[wanted - 1]);
  }
};

// The `wanted`-th of a warp's 32 * K keys, 0 if there are fewer; keys that are not 0 are all
// different.
template <int K>
__device__ Key nth_best(Key (&keys)[K], int wanted, int lane) {
#pragma unroll
  for (int i = 0; i < K - 1; ++i)
#pragma unroll
    for (int k = 0; k < K - 1 - i; ++k) {
      const Key high = max(keys[k], keys[k + 1]), low = min(keys[k], keys[k + 1]);
      keys[k] = high;
      keys[k + 1] = low;
    }
  Key nth = 0;
  for (int i = 0; i < wanted; ++i) {
    const uint32_t score = keys[0] >> 32;
    const uint32_t top = __reduce_max_sync(~0u, score);
    if (top == 0) return 0;
    unsigned owners = __ballot_sync(~0u, score == top);
    uint32_t low = __shfl_sync(~0u, static_cast<uint32_t>(keys[0]), __ffs(owners) - 1);
    if (owners & (owners - 1)) {
      low = __reduce_max_sync(~0u, score == top ? static_cast<uint32_t>(keys[0]) : 0);
      owners = __ballot_sync(~0u, score == top && static_cast<uint32_t>(keys[0]) == low);
    }
    nth = static_cast<Key>(top) << 32 | low;
    if (owners >> lane & 1) {
#pragma unroll
      for (int k = 0; k < K - 1; ++k) keys[k] = keys[k + 1];
      keys[K - 1] = 0;
    }
  }
  return nth;
}

__device__ __forceinline__ Key read_key(const Key* at) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(at));
}

// Best of the lists of one query, which are kKept keys each, best first, `stride` keys apart.
template <int kMaxParts>
__device__ void merge_parts(const Key* lists, int64_t stride, int parts, int wanted, int lane,
                            Best& best) {
  constexpr int kPairs = kKept / 2;  // loads of two lists each, of as many lists as matter
  Key key[kPairs];
  if (parts <= kKept) {
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int part = 2 * k + lane / kKept;
      key[k] = part < parts ? read_key(lists + part * stride + lane % kKept) : 0;
    }
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {  // a full list's last key is a bound
      const Key a = __shfl_sync(~0u, key[k], wanted - 1);
      const Key b = __shfl_sync(~0u, key[k], kKept + wanted - 1);
      best.least = max(best.least, max(a, b));
    }
  } else {
    // Only lists whose first key is among the best `wanted` first keys matter.
    Key first[kMaxParts / 32];
    Key sorted[kMaxParts / 32];
#pragma unroll
    for (int k = 0; k < kMaxParts / 32; ++k) {
      first[k] = 32 * k + lane < parts ? read_key(lists + (32 * k + lane) * stride) : 0;
      sorted[k] = first[k];
    }
    best.least = nth_best(sorted, wanted, lane);
    unsigned matter[kMaxParts / 32];
#pragma unroll
    for (int k = 0; k < kMaxParts / 32; ++k)
      matter[k] = __ballot_sync(~0u, first[k] != 0 && first[k] >= best.least);
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      int part[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        part[half] = -1;
#pragma unroll
        for (int w = 0; w < kMaxParts / 32; ++w)
          if (part[half] < 0 && matter[w] != 0) {
            part[half] = 32 * w + __ffs(matter[w]) - 1;
            matter[w] &= matter[w] - 1;
          }
      }
      const int own = lane < kKept ? part[0] : part[1];
      key[k] = own >= 0 ? read_key(lists + own * stride + lane % kKept) : 0;
    }
  }
#pragma unroll
  for (int k = 0; k < kPairs; ++k)
    if (__any_sync(~0u, key[k] != 0)) best.add(key[k], wanted, lane);
  best.shrink(wanted, lane);
}

}  // namespace
