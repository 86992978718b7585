// Score 4-bit index pages and keep the best of them, for decode and verify rows, on sm_90a.
//
// The work of a launch is the list of all history pages of all requests, cut into equal ranges, one
// a CTA; a CTA walks its range as segments, one a request. Each of its warps takes every eighth page
// of a segment, brings it in with bulk copies, two half pages in flight, and multiplies it with
// all the request's queries at once: a page is read once for all rows and heads. Keys are the A
// operand of wgmma, in registers, straight from the page's operand order (layouts/order.py); each of
// a warpgroup's four warps feeds its sixteen rows of the product from a page of its own, so warps
// meet only to keep the best scores. A second kernel merges each query's parts and writes its list.
//
// Both kernels are launched with programmatic stream serialisation: what does not depend on the
// kernel before (positions, page tables) is read while that one drains. So they may follow any
// kernel but one that writes positions or page tables and lets its dependents start early.
//
// Order and ties are those of docs/design/selection.md: scores descending, lower block on a tie.

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "hopper.cuh"
#include "lists.cuh"

struct Params {
  const uint8_t* q;             // e4m3 [rows, heads, 128]
  const int64_t* positions;     // [rows]
  const int64_t* request;       // [rows]
  const int64_t* table;         // [requests, width]
  const int* bounds;            // [tiles, 2]: first row, rows
  const uint8_t* pages;         // [blocks, page bytes]
  Entry* parts;                 // [ctas + tiles, N, kKept]
  int* starts;                  // [tiles + 1], for the second kernel
  int64_t* out;                 // [rows, heads, topk]
  int width, tiles, heads, init, local, wanted, topk;
};

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kTokens = 128;    // a page, and a scheduler block
constexpr int kHalf = 64;       // tokens of one bulk copy
constexpr int kCodeBytes = 64;  // of a token
constexpr int kKept = 16;       // entries of a list of best pages
constexpr int kRounds = 16;     // pages a warp scores between two merges into the lists
constexpr int kWindow = kRounds * kWarps;
constexpr int kMaxTiles = 512;
constexpr int kMaxParts = 288;  // CTAs of a launch: two on each of up to 144 multiprocessors

__device__ __forceinline__ uint32_t even_codes(uint32_t w) { return w & 0x9C9C9C9Cu; }

__device__ __forceinline__ uint32_t odd_codes(uint32_t w) {
  return ((w << 2) & 0x8C8C8C8Cu) | ((w >> 2) & 0x10101010u);
}

// Shapes that follow from the number of query columns N and the page format.
template <int N, bool kNv>
struct Shape {
  static constexpr int kScaleBytes = kNv ? 8 : 4;  // of a token
  static constexpr int kPageBytes = kTokens * (kCodeBytes + kScaleBytes);
  static constexpr int kHalfBytes = kHalf * (kCodeBytes + kScaleBytes);
  static constexpr int kStages = 2;
  // NVFP4 has two scales in the 32 elements of a product: its queries come twice, once with the
  // other half of the elements zeroed.
  static constexpr int kColumns = kNv ? 2 * N : N;
};

template <int N, bool kNv>
struct Shared {
  alignas(128) uint8_t ring[kWarps][Shape<N, kNv>::kStages][Shape<N, kNv>::kHalfBytes];
  alignas(128) uint8_t queries[4 * 32 * Shape<N, kNv>::kColumns];
  float scores[N][kWindow];
  Entry kept[N][kKept];
  int stop[N];                // first block past each query's history; 0: selects nothing
  int start[kMaxTiles + 1];   // first page of each tile in the list of all pages
  int request[kMaxTiles];     // of each tile
  int sums[kWarps];
  alignas(8) uint64_t full[kWarps][Shape<N, kNv>::kStages];
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
    for (int w = 0; w < kWarps; ++w) before += s.sums[w];
    __syncthreads();
  }
}

// Write the list of a query: history from lanes 0 to wanted - 1, then forced blocks.
__device__ void emit(const Params& p, int row, int head, int64_t position, Entry mine, int lane) {
  const int taken = __popc(__ballot_sync(~0u, mine.score != 0));
  if (lane >= p.topk) return;
  int64_t block = -1;
  if (position >= 0) {
    const int visible = static_cast<int>(position / kTokens) + 1;
    const int local = min(visible, p.local), init = min(visible - local, p.init);
    const int nth = lane - taken;
    if (nth < 0) block = mine.block;
    else if (nth < init) block = nth;
    else if (nth < init + local) block = visible - local + nth - init;
  }
  p.out[(static_cast<int64_t>(row) * p.heads + head) * p.topk + lane] = block;
}

// The best history blocks of one query, from the parts that `parts` CTAs left.
template <int N>
__device__ Entry merge(const Params& p, int query, int first_part, int parts, int lane) {
  const Entry* lists = p.parts + (static_cast<int64_t>(first_part) * N + query) * kKept;
  const int64_t stride = static_cast<int64_t>(N) * kKept;
  if (parts <= 8) {
    Entry e[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int i = 32 * k + lane;
      e[k] = i < parts * kKept ? read_part(lists + (i / kKept) * stride + i % kKept) : Entry{0, 0};
    }
    return best_of(e, p.wanted, lane);
  } else {
    // Lists hold disjoint, ascending ranges of blocks, so that the best `wanted` lists by their
    // heads (the earlier one on a tie) hold the whole answer.
    Entry heads[kMaxParts / 32];
#pragma unroll
    for (int k = 0; k < kMaxParts / 32; ++k) {
      const int i = 32 * k + lane;
      heads[k] = {i < parts ? read_part(lists + i * stride).score : 0, static_cast<uint32_t>(i)};
    }
    const Entry list = best_of(heads, p.wanted, lane);
    Entry e[kKept / 2];
#pragma unroll
    for (int k = 0; k < kKept / 2; ++k) {
      const int from = 2 * k + lane / kKept;
      const uint32_t some = __shfl_sync(~0u, list.score, from);
      const uint32_t index = __shfl_sync(~0u, list.block, from);
      e[k] = some != 0 ? read_part(lists + index * stride + lane % kKept) : Entry{0, 0};
    }
    return best_of(e, p.wanted, lane);
  }
}

// Put a tile's queries into shared memory as B operands, and note where each one's history ends.
template <int N, bool kNv, typename S>
__device__ void load_queries(const Params& p, S& s, int tile) {
  constexpr int kColumns = Shape<N, kNv>::kColumns;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int2 bounds = reinterpret_cast<const int2*>(p.bounds)[tile];
  const int queries = bounds.y * p.heads;
  const uint32_t* q =
      reinterpret_cast<const uint32_t*>(p.q) + static_cast<int64_t>(bounds.x) * p.heads * 32;
#pragma unroll
  for (int n = warp; n < N; n += kWarps) {  // a warp a query, four elements a lane
    const uint32_t word = n < queries ? q[n * 32 + lane] : 0;
    const int row = bounds.x + (n < queries ? n / p.heads : 0);
    const int64_t at = p.positions[row], request = p.request[row];
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
    // A NaN query has no scores to choose by.
    const bool selects = n < queries && at >= 0 && request >= 0 && !__any_sync(~0u, nan);
    if (lane == 0) s.stop[n] = selects ? static_cast<int>(at / kTokens) + 1 - p.local : 0;
    if (lane < kKept) s.kept[n][lane] = {0, 0};
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// What a lane needs of one tile of sixteen tokens: its share of the codes, and its tokens' scales.
template <bool kNv>
struct Tile {
  static constexpr int kWords = kNv ? 2 : 1;
  uint4 low, high;
  uint32_t scales[2][kWords];

  __device__ __forceinline__ void load(const uint8_t* half, int tile, int lane) {
    low = *reinterpret_cast<const uint4*>(half + tile * 1024 + lane * 16);
    high = *reinterpret_cast<const uint4*>(half + tile * 1024 + 512 + lane * 16);
    const uint8_t* at = half + kHalf * kCodeBytes + (tile * 16 + lane / 4) * 4 * kWords;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int w = 0; w < kWords; ++w)
        scales[r][w] = *reinterpret_cast<const uint32_t*>(at + r * 32 * kWords + 4 * w);
  }

  // Scale values of row r; a factor common to all does not matter.
  __device__ __forceinline__ void scale(int r, float* to) const {
    if constexpr (kNv) {
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(
            static_cast<__nv_fp8x2_storage_t>(scales[r][h / 2] >> (16 * (h % 2))), __NV_E4M3);
        const float2 both = __half22float2(__half2(pair));
        to[2 * h] = both.x;
        to[2 * h + 1] = both.y;
      }
    } else {
      to[0] = __uint_as_float(scales[r][0] << 23 & 0x7F800000u);
      to[1] = __uint_as_float(scales[r][0] << 15 & 0x7F800000u);
      to[2] = __uint_as_float(scales[r][0] << 7 & 0x7F800000u);
      to[3] = __uint_as_float(scales[r][0] >> 1 & 0x7F800000u);
    }
  }
};

// Raise `most` to the largest product of each query with the tokens of half a page.
template <int N, bool kNv>
__device__ __forceinline__ void score_half(const uint8_t* half, uint64_t b, int lane,
                                           float (&most)[N / 4]) {
  constexpr int kColumns = Shape<N, kNv>::kColumns;
  Tile<kNv> next;
  next.load(half, 0, lane);
#pragma unroll
  for (int t = 0; t < kHalf / 16; ++t) {
    const Tile<kNv> tile = next;
    const uint32_t lows[4] = {tile.low.x, tile.low.y, tile.low.z, tile.low.w};
    const uint32_t highs[4] = {tile.high.x, tile.high.y, tile.high.z, tile.high.w};
    uint32_t a[4][4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      a[s][0] = even_codes(lows[s]);
      a[s][1] = even_codes(highs[s]);
      a[s][2] = odd_codes(lows[s]);
      a[s][3] = odd_codes(highs[s]);
    }
    float sum[4][kColumns / 2];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int s = 0; s < 4; ++s)
      product<kColumns>(sum[s], a[s], b + static_cast<uint64_t>(s * 32 * kColumns >> 4));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (t + 1 < kHalf / 16) next.load(half, t + 1, lane);  // while the products run
    float scale[2][kNv ? 8 : 4];
    tile.scale(0, scale[0]);
    tile.scale(1, scale[1]);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) asm volatile("" : "+f"(sum[s][i])::"memory");
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {  // row i / 2 % 2 of the lane's two, column 8 (i / 4) + i % 2
      const int r = i / 2 % 2;
      float score = scale[r][0] * sum[0][i];
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        if constexpr (kNv) {
          if (s > 0) score = fmaf(scale[r][2 * s], sum[s][i], score);
          score = fmaf(scale[r][2 * s + 1], sum[s][N / 2 + i], score);
        } else if (s > 0) {
          score = fmaf(scale[r][s], sum[s][i], score);
        }
      }
      float& best = most[2 * (i / 4) + i % 2];
      best = fmaxf(best, score);
    }
  }
}

template <int N, bool kNv>
__global__ void __launch_bounds__(kThreads, 2) select_kernel(const Params p) {
  using S = Shared<N, kNv>;
  constexpr int kStages = Shape<N, kNv>::kStages;
  constexpr uint32_t kCodes = kHalf * kCodeBytes;
  constexpr uint32_t kScales = kHalf * Shape<N, kNv>::kScaleBytes;
  extern __shared__ __align__(128) uint8_t memory[];
  S& s = *reinterpret_cast<S*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  let_next_kernel_start();
  if (threadIdx.x < kWarps * kStages) barrier_init(shared_address(&s.full[0][0] + threadIdx.x));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  number_pages(p, s);
  const int total = s.start[p.tiles];
  const int per_cta = (total + gridDim.x - 1) / gridDim.x;
  const int begin = min(total, static_cast<int>(blockIdx.x) * per_cta);
  const int end = min(total, begin + per_cta);

  if (begin == end) {
    if (blockIdx.x == 0) {  // no history at all
      wait_for_kernel_before();
      for (int i = threadIdx.x; i <= p.tiles; i += kThreads) p.starts[i] = s.start[i];
    }
    return;
  }

  int tile = 0;
  {
    int above = p.tiles;  // the tile whose range holds `begin`
    while (above - tile > 1) {
      const int middle = (tile + above) / 2;
      if (s.start[middle] <= begin) tile = middle; else above = middle;
    }
  }

  // The feed runs kStages half pages ahead of the scoring, across segments. Page ids come 32 at a
  // time, one a lane.
  int feed_tile = tile, feed_page = begin + warp, feed_half = 0, feed_ids_from = -1;
  int64_t feed_ids = 0;
  auto next_page = [&]() {  // false: there is none
    while (feed_page >= min(end, s.start[feed_tile + 1])) {
      if (s.start[feed_tile + 1] >= end) return false;
      ++feed_tile;
      feed_page = s.start[feed_tile] + warp;
      feed_ids_from = -1;
    }
    if (feed_ids_from < 0 || feed_page >= feed_ids_from + 32 * kWarps) {
      feed_ids_from = feed_page;
      const int page = feed_page + lane * kWarps;
      const int64_t request = s.request[feed_tile];
      const int block = page - s.start[feed_tile] + p.init;
      if (page < min(end, s.start[feed_tile + 1])) feed_ids = p.table[request * p.width + block];
    }
    return true;
  };
  auto feed = [&](int stage) {
    if (!next_page()) return;
    const int64_t id = __shfl_sync(~0u, feed_ids, (feed_page - feed_ids_from) / kWarps);
    if (lane == 0) {
      const uint8_t* page = p.pages + id * Shape<N, kNv>::kPageBytes;
      const uint32_t bar = shared_address(&s.full[warp][stage]);
      const uint32_t to = shared_address(s.ring[warp][stage]);
      barrier_expect(bar, kCodes + kScales);
      bulk_copy(to, page + feed_half * kCodes, kCodes, bar);
      bulk_copy(to + kCodes, page + 2 * kCodes + feed_half * kScales, kScales, bar);
    }
    feed_half ^= 1;
    if (feed_half == 0) feed_page += kWarps;
  };
  next_page();
  wait_for_kernel_before();
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i <= p.tiles; i += kThreads) p.starts[i] = s.start[i];
  for (int stage = 0; stage < kStages; ++stage) feed(stage);

  int stage = 0;
  uint32_t parity = 0;
  for (int first = begin; first < end; ++tile) {
    const int stop = min(end, s.start[tile + 1]);
    if (first >= stop) continue;
    load_queries<N, kNv>(p, s, tile);
    __syncthreads();
    const int queries = p.bounds[2 * tile + 1] * p.heads;
    const uint64_t b = descriptor(shared_address(s.queries), 16 * Shape<N, kNv>::kColumns);
    for (int window = first; window < stop; window += kWindow) {
      const int rounds = min(kRounds, (stop - window + kWarps - 1) / kWarps);
      for (int round = 0; round < rounds; ++round) {
        const int page = window + round * kWarps + warp;
        const bool mine = page < stop;
        float most[N / 4];
#pragma unroll
        for (int i = 0; i < N / 4; ++i) most[i] = __int_as_float(0xff800000);
        for (int half = 0; half < 2; ++half) {
          if (mine) barrier_wait(shared_address(&s.full[warp][stage]), parity);
          score_half<N, kNv>(s.ring[warp][stage], b, lane, most);
          if (mine) {
            __syncwarp();
            feed(stage);
            if (++stage == kStages) stage = 0, parity ^= 1;
          }
        }
#pragma unroll
        for (int d = 4; d < 32; d *= 2)
#pragma unroll
          for (int i = 0; i < N / 4; ++i)
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], d));
        if (lane < 4) {
#pragma unroll
          for (int i = 0; i < N / 4; ++i)
            s.scores[8 * (i / 2) + 2 * lane + i % 2][round * kWarps + warp] = most[i];
        }
      }
      __syncthreads();
      const bool finished = window + kWindow >= stop;
      const int pages = min(kWindow, stop - window);
      const int block = window - s.start[tile] + p.init;  // of the window's first page
      for (int q = warp; q < queries; q += kWarps) {
        constexpr int kSlots = kWindow / 32;
        Entry e[kSlots + 1];
        uint32_t top = 0;
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          const int i = 32 * k + lane;
          const bool counts = i < pages && block + i < s.stop[q];
          e[k] = {counts ? ordered(s.scores[q][i]) : 0, static_cast<uint32_t>(block + i)};
          top = max(top, e[k].score);
        }
        Entry best = lane < kKept ? s.kept[q][lane] : Entry{0, 0};
        e[kSlots] = best;
        // Past the first windows, most bring nothing that beats the list.
        const uint32_t least = __shfl_sync(~0u, best.score, p.wanted - 1);
        if (__any_sync(~0u, top > least)) best = best_of(e, p.wanted, lane);
        if (lane < kKept) {
          s.kept[q][lane] = best;
          if (finished)
            p.parts[(static_cast<int64_t>(blockIdx.x + tile) * N + q) * kKept + lane] = best;
        }
      }
      __syncthreads();
    }
    first = stop;
  }
}

// One warp a query: gather what the CTAs of its tile kept.
template <int N>
__global__ void __launch_bounds__(32) merge_kernel(const Params p, int ctas) {
  const int tile = blockIdx.x, query = blockIdx.y, lane = threadIdx.x;
  const int2 bounds = reinterpret_cast<const int2*>(p.bounds)[tile];
  const bool known = query < bounds.y * p.heads;
  const int row = bounds.x + (known ? query / p.heads : 0);
  const int64_t request = p.request[row], at = p.positions[row];
  wait_for_kernel_before();
  let_next_kernel_start();
  if (!known) return;
  const int start = __ldcg(p.starts + tile), stop = __ldcg(p.starts + tile + 1);
  const int total = __ldcg(p.starts + p.tiles);
  Entry best = {0, 0};
  if (start < stop) {
    const int per_cta = (total + ctas - 1) / ctas;
    const int first_cta = start / per_cta;
    best = merge<N>(p, query, first_cta + tile, (stop - 1) / per_cta - first_cta + 1, lane);
  }
  emit(p, row, query % p.heads, request < 0 ? -1 : at, best, lane);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 grid, int threads, int shared,
                         cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <int N, bool kNv>
int launch(const Params& p, int queries, int ctas, cudaStream_t stream) {
  static bool ready = false;
  const int bytes = sizeof(Shared<N, kNv>);
  if (!ready) {
    const cudaError_t error = cudaFuncSetAttribute(
        select_kernel<N, kNv>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    ready = true;
  }
  const cudaError_t error =
      launch_early(select_kernel<N, kNv>, dim3(ctas), kThreads, bytes, stream, p);
  if (error != cudaSuccess) return error;
  return launch_early(merge_kernel<N>, dim3(p.tiles, queries), 32, 0, stream, p, ctas);
}

}  // namespace

// Returns a cudaError_t, or -1 for a number of queries a tile that no kernel is built for.
extern "C" int gnomon_select(const Params* p, int queries, int nvfp4, int ctas, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  if (!nvfp4) {
    if (queries <= 8) return launch<8, false>(*p, queries, ctas, on);
    if (queries <= 16) return launch<16, false>(*p, queries, ctas, on);
    if (queries <= 32) return launch<32, false>(*p, queries, ctas, on);
  } else {
    if (queries <= 8) return launch<8, true>(*p, queries, ctas, on);
    if (queries <= 16) return launch<16, true>(*p, queries, ctas, on);
  }
  return -1;
}
