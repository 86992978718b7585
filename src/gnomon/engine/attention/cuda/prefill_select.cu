// Score 4-bit index pages for prefill rows and keep the best of them, on sm_90a.
//
// A CTA holds 256 (row, head) pairs of one request and walks a part of the request's pages. Some
// warps unpack: each page is brought into shared memory once as the B operand of products, e4m3 or
// bf16, with the scales of its groups already applied, as shares of the page's largest scale: sums
// come out of the tensor cores finished but for one factor a page. Two groups of four warps hold
// 128 queries each, as two products of 64; while one product runs, the sums of the other are
// searched for the largest. One number a (query, page) goes to shared memory, and each window of
// pages is merged into the lists, a thread a query.
//
// e4m3 products are for e4m3 queries over MXFP4 (a code times a power of two is e4m3 exactly while
// the page's scales span less than 2^15; what lies lower loses bits). bf16 products are exact for
// both formats and both kinds of queries.
//
// Only whole pages of a row's past compete, so no token is masked; the next kernel merges the
// parts, appends forced blocks and writes the lists.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "codes.cuh"
#include "hopper.cuh"
#include "tiles.cuh"

struct PrefillSelectParams {
  const void* q;             // [rows, heads, 128] e4m3 or bf16
  const int64_t* positions;  // [rows]
  const int64_t* request;    // [rows]
  const int64_t* table;      // [requests, width]
  const int* bounds;         // [tiles, 2]: first row, rows
  const uint8_t* pages;      // [blocks, page bytes]
  int64_t* parts;            // [tiles, splits, 256, kKept]: score above, complement of block below
  int width, heads, init, local, wanted;
};

namespace {

constexpr int kTokens = 128;
constexpr int kQueries = 256;     // of a CTA
constexpr int kKept = 16;
constexpr int64_t kNever = -(int64_t{1} << 62);
constexpr int kIdBits = 31;
constexpr int kCodeBytes = kTokens * 64;  // of a page

template <bool kFp8>
struct Shape {
  // e4m3 products leave half the time to unpack, so twice the threads do it.
  static constexpr int kProducers = kFp8 ? 256 : 128;
  static constexpr int kThreads = kProducers + kQueries;
  static constexpr int kTurns = 16 / (kProducers / 32);    // eight tokens a warp and turn
  static constexpr int kSteps = kFp8 ? 4 : 8;              // products along the head dim
  static constexpr int kPage = kTokens * 128 * (kFp8 ? 1 : 2);
  static constexpr int kStages = kFp8 ? 4 : 3;
  static constexpr int kWindow = kFp8 ? 64 : 32;           // pages between two merges
  static constexpr int kAlongPage = kTokens * 16;          // bytes between chunks of 16 bytes
  static constexpr int kAlongQueries = kQueries * 16;
};

template <bool kFp8>
struct Shared {
  alignas(128) uint8_t pages[Shape<kFp8>::kStages][Shape<kFp8>::kPage];
  alignas(128) uint8_t queries[kQueries * 128 * (kFp8 ? 1 : 2)];
  uint32_t scores[Shape<kFp8>::kWindow][kQueries];
  uint2 lists[kKept][kQueries];  // ordered score (0: nothing), block
  float factor[Shape<kFp8>::kStages];
  int stop[kQueries];
  int last[Shape<kFp8>::kThreads / 32];
  int64_t of_request[Shape<kFp8>::kThreads / 32];
  alignas(8) uint64_t full[Shape<kFp8>::kStages];
  alignas(8) uint64_t empty[Shape<kFp8>::kStages];
};

__device__ __forceinline__ uint32_t ordered(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 counts as +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// ---- Unpacking -------------------------------------------------------------------------------

// Thread (token, t) of eight tokens x four has the words t of the token's four groups of 32: see
// the operand order in layouts/order.py.
template <Format kFormat, int kTurns>
struct Packed {
  uint4 words[kTurns];                              // of so many times eight tokens
  uint32_t scales[kTurns][kFormat == kMxfp4 ? 1 : 2];    // of those tokens
  uint4 all;                                        // scales of four other tokens, for the maximum

  __device__ __forceinline__ void load(const uint8_t* page, int warp, int lane) {
    constexpr int kScaleBytes = kFormat == kMxfp4 ? 4 : 8;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int token = (warp * kTurns + i) * 8 + lane % 8;
      words[i] = __ldg(reinterpret_cast<const uint4*>(page + token * 64 + lane / 8 * 16));
      const uint8_t* at = page + kCodeBytes + token * kScaleBytes;
      if constexpr (kFormat == kMxfp4) {
        scales[i][0] = __ldg(reinterpret_cast<const uint32_t*>(at));
      } else {
        const uint2 both = __ldg(reinterpret_cast<const uint2*>(at));
        scales[i][0] = both.x;
        scales[i][1] = both.y;
      }
    }
    if constexpr (kFormat == kMxfp4)
      all = __ldg(reinterpret_cast<const uint4*>(page + kCodeBytes + lane * 16));
  }

  // The largest scale byte of the page.
  __device__ __forceinline__ int largest() const {
    if constexpr (kFormat != kMxfp4) return 0;
    return largest_byte(all);
  }
};

// Factors of the four groups as packed pairs, MXFP4: powers of two below the page's largest scale.
template <bool kFp8>
__device__ __forceinline__ void power_factors(uint32_t scales, int largest, uint32_t (&to)[4]) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const int below = largest - static_cast<int>(scales >> (8 * s) & 0xFF);
    to[s] = kFp8 ? half_power(below) : bf16_power(below);
  }
}

// NVFP4: the scales of the groups of 16 that hold the thread's codes.
__device__ __forceinline__ void e4m3_factors(const uint32_t (&scales)[2], int t, uint32_t (&to)[4]) {
  const uint32_t mine = __byte_perm(scales[0], scales[1], t / 2 ? 0x7531 : 0x6420);
#pragma unroll
  for (int s = 0; s < 4; ++s) to[s] = bf16_scales(__byte_perm(mine, 0, s * 0x11));
}

template <Format kFormat, bool kFp8>
__device__ __forceinline__ void unpack(const Packed<kFormat, Shape<kFp8>::kTurns>& in, int largest, uint8_t* page,
                                       int warp, int lane) {
  constexpr int kAlong = Shape<kFp8>::kAlongPage, kTurns = Shape<kFp8>::kTurns;
  const int t = lane / 8;
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int token = (warp * kTurns + i) * 8 + lane % 8;
    uint32_t factor[4];
    if constexpr (kFormat == kMxfp4) power_factors<kFp8>(in.scales[i][0], largest, factor);
    else e4m3_factors(in.scales[i], t, factor);
    const uint32_t words[4] = {in.words[i].x, in.words[i].y, in.words[i].z, in.words[i].w};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t even = words[s], odd = odd_codes(words[s]);
      if constexpr (kFp8) {
        *reinterpret_cast<uint32_t*>(page + place<kAlong>(token, 2 * s) + 4 * t) =
            four_e4m3(even, factor[s]);
        *reinterpret_cast<uint32_t*>(page + place<kAlong>(token, 2 * s + 1) + 4 * t) =
            four_e4m3(odd, factor[s]);
      } else {
        const uint2 a = four_bf16(even, factor[s], factor[s]), b = four_bf16(odd, factor[s], factor[s]);
        *reinterpret_cast<uint4*>(page + place<kAlong>(token, 4 * s + t)) = {a.x, a.y, b.x, b.y};
      }
    }
  }
}

// What the sums of a page have to be multiplied with.
template <Format kFormat, bool kFp8>
__device__ __forceinline__ float page_factor(int largest) {
  if constexpr (kFormat == kNvfp4) return 0x1p8f;
  return scalbnf(1.0f, largest - 127 - (kFp8 ? 6 : 0));
}

template <Format kFormat, bool kFp8>
__device__ void produce(const PrefillSelectParams& p, Shared<kFp8>& s, int64_t request, int begin,
                        int end) {
  constexpr int kStages = Shape<kFp8>::kStages;
  constexpr int kPageBytes = kCodeBytes + kTokens * (kFormat == kMxfp4 ? 4 : 8);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t* table = p.table + request * p.width;
  Packed<kFormat, Shape<kFp8>::kTurns> next;
  int64_t ids = begin + lane < end ? table[begin + lane] : 0;
  next.load(p.pages + __shfl_sync(~0u, ids, 0) * kPageBytes, warp, lane);
  int stage = 0;
  uint32_t parity = 1;  // a stage's first use waits for nobody
  for (int block = begin; block < end; ++block) {
    const Packed<kFormat, Shape<kFp8>::kTurns> packed = next;
    const int after = block + 1 - begin;
    if (block + 1 < end) {
      if (after % 32 == 0) ids = block + 1 + lane < end ? table[block + 1 + lane] : 0;
      next.load(p.pages + __shfl_sync(~0u, ids, after % 32) * kPageBytes, warp, lane);
    }
    const int largest = packed.largest();
    barrier_wait(shared_address(&s.empty[stage]), parity);
    unpack<kFormat, kFp8>(packed, largest, s.pages[stage], warp, lane);
    if (threadIdx.x == 0) s.factor[stage] = page_factor<kFormat, kFp8>(largest);
    fence_operands();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.full[stage]));
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
}

// ---- Scoring ---------------------------------------------------------------------------------

// Products of 64 queries with a page, started; `d` is theirs until the wait.
template <bool kFp8>
__device__ __forceinline__ void start(float (&d)[64], uint64_t queries, uint64_t page) {
#pragma unroll
  for (int k = 0; k < Shape<kFp8>::kSteps; ++k) {
    const uint64_t a = moved(queries, k * 2 * Shape<kFp8>::kAlongQueries);
    const uint64_t b = moved(page, k * 2 * Shape<kFp8>::kAlongPage);
    if constexpr (kFp8) tile_product_e4m3(d, a, b, k > 0);
    else tile_product_bf16(d, a, b, k > 0);
  }
  products_commit();
}

// The largest of a lane's 32 sums of each of its two rows, then of the four lanes that share them.
// Bits of numbers of which one is not negative compare as integers, three at a time.
__device__ __forceinline__ float2 largest_sums(const float (&d)[64]) {
  int most[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = max(__float_as_int(d[2 * r]), __float_as_int(d[2 * r + 1]));
#pragma unroll
    for (int j = 1; j < 16; ++j)
      most[r] = __vimax3_s32(most[r], __float_as_int(d[4 * j + 2 * r]),
                             __float_as_int(d[4 * j + 2 * r + 1]));
#pragma unroll
    for (int x = 1; x < 4; x *= 2) most[r] = max(most[r], __shfl_xor_sync(~0u, most[r], x));
  }
  float2 out = {__int_as_float(most[0]), __int_as_float(most[1])};
  if (__any_sync(~0u, (most[0] | most[1]) < 0)) {  // a row of negative sums alone
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = fmaxf(d[2 * r], d[2 * r + 1]);
#pragma unroll
      for (int j = 1; j < 16; ++j) top = fmaxf(top, fmaxf(d[4 * j + 2 * r], d[4 * j + 2 * r + 1]));
#pragma unroll
      for (int x = 1; x < 4; x *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, x));
      (r == 0 ? out.x : out.y) = top;
    }
  }
  return out;
}

// Merge a window's scores of one query into its list, best first. Pages come in ascending order, so
// an entry that ties with a new one stays before it.
template <bool kFp8>
__device__ void keep(Shared<kFp8>& s, int mine, int first_block, int count, int wanted) {
  constexpr int kWindow = Shape<kFp8>::kWindow;
  uint32_t score[kKept], block[kKept];
#pragma unroll
  for (int e = 0; e < kKept; ++e) {
    const uint2 entry = s.lists[e][mine];
    score[e] = entry.x;
    block[e] = entry.y;
  }
  uint32_t least = s.lists[wanted - 1][mine].x;
  count = min(count, s.stop[mine] - first_block);
  uint32_t better[kWindow / 32];
#pragma unroll
  for (int h = 0; h < kWindow / 32; ++h) {
    better[h] = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (32 * h + i < count && s.scores[32 * h + i][mine] > least) better[h] |= 1u << i;
  }
  bool changed = false;
#pragma unroll
  for (int h = 0; h < kWindow / 32; ++h) {
    while (__any_sync(~0u, better[h] != 0)) {
      const int i = better[h] ? 32 * h + __ffs(better[h]) - 1 : 0;
      uint32_t x = s.scores[i][mine];
      if (better[h] == 0) x = 0;
      better[h] &= better[h] - 1;
      changed |= x > least;
      const uint32_t id = first_block + i;
      bool above[kKept];
#pragma unroll
      for (int e = 0; e < kKept; ++e) above[e] = x > score[e];
#pragma unroll
      for (int e = kKept - 1; e > 0; --e) {
        score[e] = above[e - 1] ? score[e - 1] : above[e] ? x : score[e];
        block[e] = above[e - 1] ? block[e - 1] : above[e] ? id : block[e];
      }
      score[0] = above[0] ? x : score[0];
      block[0] = above[0] ? id : block[0];
    }
  }
  if (changed) {
#pragma unroll
    for (int e = 0; e < kKept; ++e) s.lists[e][mine] = {score[e], block[e]};
  }
}

template <bool kFp8>
__device__ void consume(const PrefillSelectParams& p, Shared<kFp8>& s, int begin, int end) {
  using H = Shape<kFp8>;
  const int thread = threadIdx.x - Shape<kFp8>::kProducers;
  const int group = thread / 128, warp = thread / 32, lane = thread % 32;
  // The sixteen rows of the warp in each of the group's two products, in the order of its threads.
  const uint32_t at = shared_address(s.queries);
  const uint64_t queries = operand(at + group * 2048, H::kAlongQueries);
  const uint64_t pages = operand(shared_address(s.pages), H::kAlongPage);
  float d0[64], d1[64];
  auto put = [&](const float (&d)[64], int tile, int slot, float factor) {
    const float2 most = largest_sums(d);
    if (lane % 4 < 2)
      s.scores[slot][warp * 32 + tile * 16 + lane / 4 + 8 * (lane % 4)] =
          ordered((lane % 4 ? most.y : most.x) * factor);
  };
  auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.empty[stage]));
  };
  int stage = 0;
  uint32_t parity = 0;
  for (int window = begin; window < end; window += H::kWindow) {
    const int count = min(H::kWindow, end - window);
    for (int i = 0; i < count; ++i) {
      barrier_wait(shared_address(&s.full[stage]), parity);
      const float factor = s.factor[stage];
      const uint64_t page = moved(pages, stage * H::kPage);
      products_begin();
      start<kFp8>(d0, queries, page);
      start<kFp8>(d1, moved(queries, 1024), page);
      products_wait<1>();  // the second runs while the sums of the first are searched
      products_done(d0);
      put(d0, 0, i, factor);
      products_wait<0>();
      products_done(d1);
      release(stage);
      put(d1, 1, i, factor);
      if (++stage == H::kStages) stage = 0, parity ^= 1;
    }
    __syncwarp();
    keep<kFp8>(s, thread, window, count, p.wanted);
    __syncwarp();
  }
}

// Query m of the tile is thread `of_query(m)`'s: 16 rows of each of its group's two products are a
// warp's.
__device__ __forceinline__ int thread_of(int m) {
  return m / 128 * 128 + m % 64 / 16 * 32 + m % 128 / 64 * 16 + m % 16;
}

// Bring the tile's queries into shared memory as A operands, in the order of the pages' elements.
template <bool kFp8, typename T>
__device__ void load_queries(const PrefillSelectParams& p, Shared<kFp8>& s, int first, int count) {
  constexpr int kAlong = Shape<kFp8>::kAlongQueries;
  const T* q = static_cast<const T*>(p.q) + static_cast<int64_t>(first) * p.heads * 128;
  const int queries = count * p.heads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int m = warp; m < kQueries; m += Shape<kFp8>::kThreads / 32) {
    bool nan = false;
    if (m < queries) {
#pragma unroll
      for (int b = 0; b < 4; ++b) {  // element 4 lane + b
        const int e = 4 * lane + b;
        const T value = q[m * 128 + e];
        nan |= isnan(static_cast<float>(value));
        if constexpr (kFp8) {
          const int c = e / 32 * 2 + e % 2;  // even elements of a group of 32, then odd ones
          s.queries[place<kAlong>(m, c) + e % 32 / 2] = value.__x;
        } else {
          // In a chunk: elements 0 4, 2 6, 1 5, 3 7, as four_bf16 leaves them.
          const int in = e % 8, to = in % 2 * 4 + in % 4 / 2 * 2 + in / 4;
          const __nv_bfloat16 wide = static_cast<__nv_bfloat16>(static_cast<float>(value));
          *reinterpret_cast<__nv_bfloat16*>(s.queries + place<kAlong>(m, e / 8) + 2 * to) = wide;
        }
      }
    } else {
      for (int c = lane; c < (kFp8 ? 8 : 16); c += 32)
        *reinterpret_cast<uint4*>(s.queries + place<kAlong>(m, c)) = {0, 0, 0, 0};
    }
    if (__any_sync(~0u, nan) && lane == 0) s.stop[thread_of(m)] = 0;  // no scores to choose by
  }
}

template <Format kFormat, bool kFp8, typename T>
__global__ void __launch_bounds__(Shape<kFp8>::kThreads, 1) prefill_select_kernel(const PrefillSelectParams p) {
  using H = Shape<kFp8>;
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<kFp8>& s = *reinterpret_cast<Shared<kFp8>*>(memory);
  const int tile = blockIdx.x, split = blockIdx.y;
  const int first = p.bounds[2 * tile], count = p.bounds[2 * tile + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  // Where each query's history ends; the longest of them; the request.
  int last = 0;
  int64_t request = 0;
  for (int m = threadIdx.x; m < kQueries; m += H::kThreads) {
    int stop = 0;
    if (m < count * p.heads) {
      const int64_t at = p.positions[first + m / p.heads];
      const int64_t owner = p.request[first + m / p.heads];
      if (at >= 0 && owner >= 0) {
        stop = static_cast<int>(at / kTokens) + 1 - p.local;
        request = owner;
      }
    }
    s.stop[thread_of(m)] = stop;
    last = max(last, stop);
  }
  for (int i = threadIdx.x; i < kKept * kQueries; i += H::kThreads)
    s.lists[i / kQueries][i % kQueries] = {0, 0};
  for (int x = 16; x > 0; x /= 2) {
    last = max(last, __shfl_xor_sync(~0u, last, x));
    request = max(request, __shfl_xor_sync(~0u, request, x));
  }
  if (lane == 0) s.last[warp] = last, s.of_request[warp] = request;
  if (threadIdx.x == 0)
    for (int i = 0; i < H::kStages; ++i) {
      barrier_init(shared_address(&s.full[i]), H::kProducers / 32);
      barrier_init(shared_address(&s.empty[i]), kQueries / 32);
    }
  __syncthreads();
  for (int w = 0; w < H::kThreads / 32; ++w) {
    last = max(last, s.last[w]);
    request = max(request, s.of_request[w]);
  }
  load_queries<kFp8, T>(p, s, first, count);
  fence_operands();
  __syncthreads();
  const int pages = max(last - p.init, 0);
  const int per_split = (pages + gridDim.y - 1) / gridDim.y;
  const int begin = p.init + split * per_split;
  const int end = max(begin, min(begin + per_split, last));

  if (threadIdx.x < H::kProducers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    if (begin < end) produce<kFormat, kFp8>(p, s, request, begin, end);
  } else {
    if constexpr (kFp8) asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    consume<kFp8>(p, s, begin, end);
    const int thread = threadIdx.x - Shape<kFp8>::kProducers;
    const int within = thread % 128;
    const int m = thread / 128 * 128 + within % 32 / 16 * 64 + within / 32 * 16 + within % 16;
    int64_t* out = p.parts + ((static_cast<int64_t>(tile) * gridDim.y + split) * kQueries + m) * kKept;
#pragma unroll
    for (int e = 0; e < kKept; ++e) {
      const uint2 entry = s.lists[e][thread];
      const int64_t score = static_cast<int32_t>(entry.x ^ 0x80000000u);
      const int64_t id = (int64_t{1} << kIdBits) - 1 - entry.y;
      out[e] = entry.x == 0 || e >= p.wanted ? kNever : score * (int64_t{1} << kIdBits) | id;
    }
  }
}

template <Format kFormat, bool kFp8, typename T>
int launch(const PrefillSelectParams& p, int tiles, int splits, cudaStream_t stream) {
  static bool ready = false;
  auto kernel = prefill_select_kernel<kFormat, kFp8, T>;
  const int bytes = sizeof(Shared<kFp8>);
  if (!ready) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    ready = true;
  }
  kernel<<<dim3(tiles, splits), Shape<kFp8>::kThreads, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

// Returns a cudaError_t. `bf16_queries`: the queries are bf16, not e4m3.
extern "C" int gnomon_prefill_select(const PrefillSelectParams* p, int nvfp4, int bf16_queries,
                                     int tiles, int splits, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  if (bf16_queries)
    return nvfp4 ? launch<kNvfp4, false, __nv_bfloat16>(*p, tiles, splits, on)
                 : launch<kMxfp4, false, __nv_bfloat16>(*p, tiles, splits, on);
  return nvfp4 ? launch<kNvfp4, false, __nv_fp8_e4m3>(*p, tiles, splits, on)
               : launch<kMxfp4, true, __nv_fp8_e4m3>(*p, tiles, splits, on);
}
