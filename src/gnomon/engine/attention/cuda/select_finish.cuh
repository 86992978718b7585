// The end of a request's part: lists written out, merged by the last CTA, and completed.

#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "select_lists.cuh"
#include "select_work.cuh"

namespace {

// Write the list of query `query` of a tile: history from lanes 0 to wanted - 1, then forced
// blocks.
__device__ void emit(const Params& p, int first_row, int query, int at, Key mine, int lane) {
  const int taken = __popc(__ballot_sync(~0u, mine != 0));
  if (lane >= p.topk) return;
  int64_t block = -1;
  if (at >= 0) {
    const int visible = at / kTokens + 1;
    const int local = min(visible, p.local), init = min(visible - local, p.init);
    const int nth = lane - taken;
    if (nth < 0) block = block_of(mine);
    else if (nth < init) block = nth;
    else if (nth < init + local) block = visible - local + nth - init;
  }
  p.out[(static_cast<int64_t>(first_row) * p.heads + query) * p.topk + lane] = block;
}

// A scoring warp at the end of a segment: write the lists of its queries, or merge them if all
// others of the request have been written.
template <int N, typename S>
__device__ __noinline__ void finish(const Params& p, S& s, int tile, int2 bounds, int part,
                                    int parts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int queries = bounds.y * p.heads;
  constexpr int kEach = (N + kScorers - 1) / kScorers;
  const int64_t stride = static_cast<int64_t>(N) * kKept;
  for (int i = 0; i < kEach; ++i) {
    const int q = warp + i * kScorers;
    if (q >= queries) break;
    constexpr int kKeys = 32 / N * kKept;
    Key* keys = s.kept + q * kKeys;
    const int n = keep_best<(kKeys + 31) / 32>(keys, kKeys, p.wanted, lane);
    const Key mine = lane < n ? keys[lane] : 0;
    if (parts == 1) emit(p, bounds.x, q, s.at[q], mine, lane);
    else if (lane < kKept) p.parts[part * stride + q * kKept + lane] = mine;
  }
  if (parts == 1) return;
  __threadfence();
  __syncwarp();
  const int own = warp + lane * kScorers;
  bool last = false;
  if (lane < kEach && own < queries)
    last = atomicInc(p.arrived + tile * N + own, parts - 1) == parts - 1;
  unsigned merging = __ballot_sync(~0u, last);
  if (merging == 0) return;
  __threadfence();
  const int total = s.start[p.tiles];
  const Range range{total, min(static_cast<int>(gridDim.x), total)};
  const int first_part = part - (blockIdx.x - range.cta_of(s.start[tile]));
  for (; merging != 0; merging &= merging - 1) {
    const int q = warp + (__ffs(merging) - 1) * kScorers;
    Best best{s.scratch[warp]};
    merge_parts<kMaxParts>(p.parts + first_part * stride + q * kKept, stride, parts, p.wanted, lane,
                           best);
    emit(p, bounds.x, q, s.at[q], lane < best.n ? s.scratch[warp][lane] : 0, lane);
    __syncwarp();
  }
}

}  // namespace
