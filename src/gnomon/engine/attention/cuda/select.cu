// Score 4-bit index pages and keep the best of them, for decode and verify rows, on sm_90a.
//
// The work of a launch is the list of all history pages of all requests, cut into equal ranges, one
// a CTA (one on each multiprocessor); a CTA walks its range as segments, one a request. A warp of
// it feeds a ring of pages with bulk copies; four warpgroups take turns to multiply a page with all
// the request's queries at once, so that a page is read once for all rows and heads; one more warp
// keeps the best pages of each query. Keys are the A operand of wgmma, in registers, straight from
// the page's operand order (layouts/order.py). At the end of a segment the scoring warps write its
// lists out, and the last CTA to do so for a request merges them.
//
// The kernel is launched with programmatic stream serialisation: while the kernel before it ends,
// it reads positions and page tables and fills its ring, with pages before the first row of their
// request in the batch. So it may follow any kernel but one that writes one of these and lets its
// dependents start early.
//
// Order and ties are those of docs/design/selection.md; the design's log is
// docs/design/kernels/selection.md.

#include <cuda_runtime.h>
#include <stdint.h>

#include "hopper.cuh"
#include "select_exact.cuh"
#include "select_finish.cuh"
#include "select_lists.cuh"
#include "select_queries.cuh"
#include "select_score.cuh"
#include "select_work.cuh"

namespace {

// The feeding warp: bring pages begin to end - 1 into the ring, in order.
template <int N, bool kNv, typename S>
__device__ __noinline__ void feed(const Params& p, S& s, int tile, int begin, int end) {
  constexpr uint32_t kBytes = Shape<N, kNv>::kPageBytes;
  constexpr int kStages = S::kStages;
  const int lane = threadIdx.x % 32;
  const int2 bounds = reinterpret_cast<const int2*>(p.bounds)[tile];
  int mine = tile;  // tile of this lane's page
  int block = 0;
  auto page_id = [&](int page) -> int64_t {
    if (page >= end) return 0;
    while (page >= s.start[mine + 1]) ++mine;
    block = page - s.start[mine] + p.init;
    return p.table[static_cast<int64_t>(s.request[mine]) * p.width + block];
  };
  auto copy = [&](int stage, int64_t id) {
    const uint32_t bar = shared_address(&s.full[stage]);
    barrier_expect(bar, kBytes);
    bulk_copy_once(shared_address(s.ring[stage]), p.pages + id * kBytes, kBytes, bar);
  };
  int64_t ids = page_id(begin + lane);
  // Pages that this step does not write may come before the kernel that may write the others ends.
  int64_t first = bounds.y > 0 ? p.positions[bounds.x] : 0;
  for (int r = 1; r < bounds.y; ++r) {
    const int64_t at = p.positions[bounds.x + r];
    if (at >= 0 && (first < 0 || at < first)) first = at;
  }
  const bool old = begin + lane < end && mine == tile && block < first / kTokens;
  const int early = min(kStages, __popc(__ballot_sync(~0u, old)));
  if (lane < early) copy(lane, ids);
  wait_for_kernel_before();
  int64_t next = page_id(begin + 32 + lane);
  int stage = 0;
  uint32_t parity = 1;
  for (int k = 0; k < end - begin; ++k) {
    if (k % 32 == 0 && k > 0) {
      ids = next;
      next = page_id(begin + k + 32 + lane);
    }
    const int64_t id = __shfl_sync(~0u, ids, k % 32);
    if (k >= early) {
      barrier_wait(shared_address(&s.empty[stage]), parity);
      if (lane == 0) copy(stage, id);
    }
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
}

// The keeping warp: look at the scores of pages first to stop - 1 of a tile, as many at a time as
// its lanes have room for: lane l has query l % N of every (32 / N)-th page, and keeps a list of
// its own.
template <int N, typename S>
__device__ __noinline__ void keep(S& s, int first, int stop, int block, int k, float unit) {
  constexpr int kPages = 32 / N;
  const int lane = threadIdx.x % 32, column = lane % N, own = lane / N;
  const int end = s.stop[column];
  uint32_t scores[kKept];
  int blocks[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) scores[i] = 0, blocks[i] = 0;
  for (int page = first; page < stop; page += kPages, k += kPages, block += kPages) {
    const int pages = min(kPages, stop - page);
#pragma unroll
    for (int i = 0; i < kPages; ++i)
      if (i < pages)
        barrier_wait(shared_address(&s.scored[(k + i) % kSlots]), (k + i) / kSlots & 1);
    const int slot = (k + own) % kSlots;
    uint32_t score = 0;
    int mine = block + own;
    if (own < pages && s.invalid[slot] == 0 && mine < end) {
      const float most = max_or_nan(max_or_nan(s.most[slot][0][column], s.most[slot][1][column]),
                                    max_or_nan(s.most[slot][2][column], s.most[slot][3][column]));
      if (most == most) score = ordered(most * unit);
    }
    __syncwarp();
    if (lane < pages) barrier_arrive(shared_address(&s.taken[(k + lane) % kSlots]));
    if (__any_sync(~0u, score > scores[kKept - 1])) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) {  // on a tie the earlier block stays ahead
        const bool ahead = score > scores[i];
        const uint32_t lower = min(score, scores[i]);
        const int other = ahead ? blocks[i] : mine;
        scores[i] = max(score, scores[i]);
        blocks[i] = ahead ? mine : blocks[i];
        score = lower;
        mine = other;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    s.kept[(column * kPages + own) * kKept + i] = scores[i] == 0 ? 0 : key_of(scores[i], blocks[i]);
}

template <int N, bool kNv, int kTerms>
__global__ void __launch_bounds__(kThreads, 1)
    select_kernel(const __grid_constant__ Params p) {
  using S = Shared<N, kNv, kTerms>;
  constexpr int kStages = S::kStages;
  extern __shared__ __align__(128) uint8_t memory[];
  S& s = *reinterpret_cast<S*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x < kStages) {
    barrier_init(shared_address(&s.full[threadIdx.x]), 1);
    barrier_init(shared_address(&s.empty[threadIdx.x]), 4);
  } else if (threadIdx.x >= 32 && threadIdx.x < 32 + kSlots) {
    barrier_init(shared_address(&s.scored[threadIdx.x - 32]), 4);
    barrier_init(shared_address(&s.taken[threadIdx.x - 32]), 1);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  let_next_kernel_start();
  number_pages(p, s);
  const Range range{s.start[p.tiles], min(static_cast<int>(gridDim.x), s.start[p.tiles])};
  const int cta = blockIdx.x;
  const int begin = cta < range.ctas ? range.begin(cta) : 0;
  const int end = cta < range.ctas ? range.begin(cta + 1) : 0;

  int tile = 0;
  {
    int above = p.tiles;  // the tile whose range holds `begin`
    while (above - tile > 1) {
      const int middle = (tile + above) / 2;
      if (s.start[middle] <= begin) tile = middle; else above = middle;
    }
  }

  if (warp == kScorers) {
    if (begin < end) feed<N, kNv>(p, s, tile, begin, end);
    return;
  }
  wait_for_kernel_before();
  if (warp < kScorers) {  // tiles without history
    for (int t = cta; t < p.tiles; t += gridDim.x) {
      if (s.start[t] < s.start[t + 1]) continue;
      const int2 bounds = reinterpret_cast<const int2*>(p.bounds)[t];
      for (int q = warp; q < bounds.y * p.heads; q += kScorers) {
        const int row = bounds.x + q / p.heads;
        emit(p, bounds.x, q, p.request[row] < 0 ? -1 : static_cast<int>(p.positions[row]), 0, lane);
      }
    }
  }

  const int group = warp / 4, part_of_page = warp % 4;
  const uint64_t b = descriptor(shared_address(s.queries),
                                16 * (kTerms == 0 ? Shape<N, kNv>::kColumns : N));
  int stage = group % kStages, k = group;
  uint32_t parity = 0;
  for (int first = begin; first < end; ++tile) {
    const int stop = min(end, s.start[tile + 1]);
    if (first >= stop) continue;
    meet(kSegmentStarts);
    if (warp > kScorers) {
      meet(kQueriesReady);
      keep<N>(s, first, stop, first - s.start[tile] + p.init, first - begin,
              kTerms == 0 ? 64.0f : 1.0f);  // e4m3 codes count as 2^-6 of their value
      meet(kSegmentEnds);
      first = stop;
      continue;
    }
    const int2 bounds = reinterpret_cast<const int2*>(p.bounds)[tile];
    if constexpr (kTerms == 0) load_queries<N, kNv>(p, s, bounds);
    else load_exact_queries<N, kTerms>(p, s, bounds);
    meet(kQueriesReady);
    for (; begin + k < stop; k += kGroups) {
      const uint8_t* page = s.ring[stage];
      barrier_wait(shared_address(&s.full[stage]), parity);
      bool invalid = false;
      uint32_t scales = 0;  // MXFP4's of a token
      if constexpr (!kNv)
        scales = reinterpret_cast<const uint32_t*>(page + kTokens * kCodeBytes)[32 * part_of_page +
                                                                                lane];
      float most[N / 4];
      auto release = [&]() {
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&s.empty[stage]));
      };
      if constexpr (kTerms == 0) {
        if constexpr (!kNv) invalid = __any_sync(~0u, has_ones(scales, 0));
        score_page<N, kNv, N == 32 ? 1 : kDepth>(page, part_of_page, lane, b, most, release);
      } else {
        // Scales from 2^125 on can take an element beyond bf16, whose largest it then is.
        if (!kNv && __any_sync(~0u, has_ones(scales, 0x03030303)))
          score_page_exact<N, kNv, kTerms, !kNv>(page, part_of_page, lane, b, most);
        else
          score_page_exact<N, kNv, kTerms, false>(page, part_of_page, lane, b, most);
        release();
      }
      stage += kGroups;
      if (stage >= kStages) stage -= kStages, parity ^= 1;
      const float best = most_of_column<N>(most, lane);
      const int slot = k % kSlots;
      barrier_wait(shared_address(&s.taken[slot]), k / kSlots & 1 ^ 1);
      s.most[slot][part_of_page][column_of<N>(lane)] = best;  // some lanes write the same
      if (lane == 0) reinterpret_cast<uint8_t*>(&s.invalid[slot])[part_of_page] = invalid;
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&s.scored[slot]));
    }
    meet(kSegmentEnds);
    const int first_cta = range.cta_of(s.start[tile]);
    const int last_cta = range.cta_of(s.start[tile + 1] - 1);
    finish<N>(p, s, tile, bounds, cta + tile, last_cta - first_cta + 1);
    first = stop;
  }
}

template <int N, bool kNv, int kTerms>
int launch(const Params& p, int ctas, cudaStream_t stream) {
  static bool ready = false;
  const int bytes = sizeof(Shared<N, kNv, kTerms>);
  static_assert(bytes <= kSharedBytes);
  if (!ready) {
    const cudaError_t error = cudaFuncSetAttribute(
        select_kernel<N, kNv, kTerms>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    ready = true;
  }
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, select_kernel<N, kNv, kTerms>, p);
}

template <bool kNv, int kTerms>
int launch(const Params& p, int queries, int ctas, cudaStream_t stream) {
  if (queries <= 8) return launch<8, kNv, kTerms>(p, ctas, stream);
  if (queries <= 16) return launch<16, kNv, kTerms>(p, ctas, stream);
  if (queries <= 32) return launch<32, kNv, kTerms>(p, ctas, stream);
  return -1;
}

}  // namespace

// `terms`: 0 for e4m3 queries, 1 for bf16, 2 for fp16. Returns a cudaError_t, or -1 for more
// queries a tile than any kernel is built for.
extern "C" int gnomon_select(const Params* p, int queries, int nvfp4, int terms, int ctas,
                             void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  if (terms == 0)
    return nvfp4 ? launch<true, 0>(*p, queries, ctas, on) : launch<false, 0>(*p, queries, ctas, on);
  if (terms == 1)
    return nvfp4 ? launch<true, 1>(*p, queries, ctas, on) : launch<false, 1>(*p, queries, ctas, on);
  return nvfp4 ? launch<true, 2>(*p, queries, ctas, on) : launch<false, 2>(*p, queries, ctas, on);
}
