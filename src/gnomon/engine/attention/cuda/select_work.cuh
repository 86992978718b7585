// What a launch of the selection kernel is given, how its CTAs share the work, and what they hold.

#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "select_lists.cuh"
#include "select_score.cuh"

struct Params {
  const void* q;                // e4m3, bf16 or fp16 [rows, heads, 128]
  const int64_t* positions;     // [rows]
  const int64_t* request;       // [rows]
  const int64_t* table;         // [requests, width]
  const int* bounds;            // [tiles, 2]: first row, rows
  const uint8_t* pages;         // [blocks, page bytes]
  Key* parts;                   // [ctas + tiles, N, kKept]
  unsigned* arrived;            // [tiles, N], zero before and after a launch
  int64_t* out;                 // [rows, heads, topk]
  int width, tiles, heads, init, local, wanted, topk;
};

namespace {

constexpr int kGroups = 4;                // warpgroups that score
constexpr int kScorers = 4 * kGroups;     // warps
constexpr int kThreads = 32 * (kScorers + 2);
constexpr int kSlots = 8;                 // pages scored and not yet looked at
constexpr int kMaxTiles = 512;
constexpr int kMaxParts = 160;            // CTAs of a launch
constexpr int kDepth = 2;                 // steps of products in flight
constexpr int kSharedBytes = 200000;     // of a CTA, most of it the ring

// Named barriers; 0 is __syncthreads. All of them join the scoring warps and the keeping one.
enum { kSegmentStarts = 1, kQueriesReady, kSegmentEnds };

__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(32 * (kScorers + 1)) : "memory");
}

// `kTerms`: 0 for e4m3 queries and products, else bf16 terms of a query.
template <int N, bool kNv, int kTerms>
struct Shared {
  static constexpr int kQueryBytes =
      kTerms == 0 ? 128 * Shape<N, kNv>::kColumns : 256 * N * kTerms;
  static constexpr int kRest = kQueryBytes + kSlots * 16 * N + 4096 + N * 8 + kScorers * 528 + 5200;
  static constexpr int kStages = (kSharedBytes - kRest) / Shape<N, kNv>::kPageBytes;
  alignas(128) uint8_t ring[kStages][Shape<N, kNv>::kPageBytes];
  alignas(128) uint8_t queries[kQueryBytes];
  alignas(16) float most[kSlots][4][N];  // of each warp's tokens
  alignas(16) Key kept[32 * kKept];      // lists of the keeping warp's lanes, side by side by query
  alignas(16) Key scratch[kScorers][66];
  int stop[N];                // first block past each query's history; 0: selects nothing
  int at[N];                  // position of each query's row, -1 for a pad
  uint32_t invalid[kSlots];   // a byte for each warp that met a NaN
  int start[kMaxTiles + 1];   // first page of each tile in the list of all pages
  int request[kMaxTiles];     // of each tile
  int sums[kScorers + 2];
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t scored[kSlots];
  uint64_t taken[kSlots];
};

// History pages of a tile, those of its longest row, less the forced first ones; and its request.
__device__ int2 history(const Params& p, int tile) {
  const int2 bounds = reinterpret_cast<const int2*>(p.bounds)[tile];
  int64_t last = -1;
  int owner = 0;
#pragma unroll 4
  for (int r = bounds.x; r < bounds.x + bounds.y; ++r) {
    const int64_t at = p.positions[r], request = p.request[r];  // both loads at once
    if (request >= 0 && at > last) last = at, owner = static_cast<int>(request);
  }
  const int pages = static_cast<int>(last / kTokens) + 1 - p.local - p.init;
  return {last < 0 ? 0 : max(0, pages), owner};
}

// Fill start[0..tiles] with the running sum of the tiles' history pages.
template <typename S>
__device__ void number_pages(const Params& p, S& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int before = 0;
  if (threadIdx.x == 0) s.start[0] = 0;
  for (int base = 0; base < p.tiles; base += kThreads) {
    const int tile = base + threadIdx.x;
    const int2 mine = tile < p.tiles ? history(p, tile) : int2{0, 0};
    if (tile < p.tiles) s.request[tile] = mine.y;
    int sum = mine.x;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) s.sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += s.sums[w];
    sum += before;
    if (tile < p.tiles) s.start[tile + 1] = sum;
    for (int w = 0; w < kScorers + 2; ++w) before += s.sums[w];
    __syncthreads();
  }
}

// The pages of all tiles, and this CTA's share.
struct Range {
  int total, ctas;  // no more CTAs than pages

  __device__ int begin(int cta) const {
    return static_cast<int>(static_cast<int64_t>(total) * cta / ctas);
  }
  __device__ int cta_of(int page) const {
    return static_cast<int>((static_cast<int64_t>(page + 1) * ctas - 1) / total);
  }
};

}  // namespace
