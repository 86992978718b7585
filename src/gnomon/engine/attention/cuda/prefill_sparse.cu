// Sparse attention for prefill rows over 4-bit pages, organised by page, on sm_90a.
//
// The unit of work is a visit: the query heads of one KV head of one row attend to one page of the
// row's list. Visits are sorted by page, and a CTA takes up to 64 visits of one page: it unpacks
// keys (bf16) and values (fp16) into shared memory once and runs full tensor-core tiles, 64 rows of
// queries (four visits of sixteen heads) against the page's 128 tokens. Each visit leaves its
// output, normalised, in fp16 with a power of two for the row, and its log-sum; a second kernel
// adds up the visits of each query in the order of its list, so that the result does not depend on
// who was ready when. Rows are done in chunks that bound the memory of what visits leave.
//
// Inside a step of sixteen tokens, token 8 h + 2 t + o is the (4 t + 2 h + o)-th: the order in which
// the four tokens of a word of the value page unpack. Keys are put in the same order, so that the
// weights of a product are the operand of the next one as they are. Queries are the operand A from
// registers too, sixteen bytes a load: dim 32 p + 8 q + 4 e + 2 h + c is lane q's (of four), element
// 8 h + 2 q + c of step 2 p + e, and keys lie in that order. They come ahead of time into shared
// memory, where a thread finds what it asked for itself: a group of four warps needs no barrier
// between the tiles of an item.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "codes.cuh"
#include "hopper.cuh"
#include "tiles.cuh"

struct PrefillSparseParams {
  const uint8_t* q;          // bf16 [rows, kv heads, shared, 128]
  const int64_t* positions;  // [rows]
  const int64_t* request;    // [rows]
  const int64_t* table;      // [requests, width]
  const int64_t* listed;     // [rows, kv heads, slots], logical blocks
  const uint8_t* k;          // [blocks, kv heads, page bytes]
  const uint8_t* v;
  int* keys;                 // [rows, kv heads, slots]: chunk, head and page of each visit
  const int* sorted;         // keys, ascending
  const int64_t* order;      // the visits in that order
  int4* items;               // [rows, kv heads, slots]: first visit, visits, head, page
  int* counts;               // [chunks]: items
  __half* values;            // [chunk rows, heads, slots, 128]
  float2* stats;             // [chunk rows, heads, slots]: log2 of the sum, factor of the values
  __nv_bfloat16* out;        // [rows, heads, 128]
  float to_log2;
  int rows, width, kv_heads, slots, blocks, chunk_rows;
};

namespace {

constexpr int kTokens = 128;
constexpr int kVisits = 64;      // of an item at most
constexpr int kThreads = 256;    // two groups of four warps
constexpr int kTileRows = 64;    // of a product
constexpr int kCodeBytes = kTokens * 64;
constexpr int kAlongPage = kTokens * 16;
constexpr int kNoVisit = 0x7FFFFFFF;

// ---- Sorting visits into items ----------------------------------------------------------------

__global__ void key_kernel(const PrefillSparseParams p) {
  const int visit = blockIdx.x * blockDim.x + threadIdx.x;
  if (visit >= p.rows * p.kv_heads * p.slots) return;
  const int head = visit / p.slots % p.kv_heads, row = visit / p.slots / p.kv_heads;
  const int64_t position = p.positions[row], request = p.request[row], block = p.listed[visit];
  int key = kNoVisit;
  if (position >= 0 && request >= 0 && block >= 0 && block < p.width &&
      block * kTokens <= position) {
    const int64_t page = p.table[request * p.width + block];
    if (page >= 0)
      key = (row / p.chunk_rows * p.kv_heads + head) * p.blocks + static_cast<int>(page);
  }
  p.keys[visit] = key;
}

// The thread at the first visit of a page cuts the page's visits into items. A warp asks for room once
// for all its threads, but for the few that see the end of a chunk.
__global__ void item_kernel(const PrefillSparseParams p) {
  const int n = p.rows * p.kv_heads * p.slots;
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  const int key = i < n ? p.sorted[i] : kNoVisit;
  const bool first = key != kNoVisit && (i == 0 || p.sorted[i - 1] != key);
  int end = i;
  if (first) {
    int low = i, high = n;  // the last visit of the page lies in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (p.sorted[middle] == key) low = middle; else high = middle;
    }
    end = high;
  }
  const int chunk = key / p.blocks / p.kv_heads;
  const int items = first ? (end - i + kVisits - 1) / kVisits : 0;
  int before = items;  // of this and the lanes below
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, before, d);
    if (lane >= d) before += other;
  }
  const int all = __shfl_sync(~0u, before, 31);
  const int last_chunk = __reduce_max_sync(~0u, first ? chunk : -1);
  const bool alike = __all_sync(~0u, !first || chunk == last_chunk);
  int at = 0;
  if (alike && all > 0) {
    if (lane == 31) at = atomicAdd(p.counts + last_chunk, all);
    at = __shfl_sync(~0u, at, 31) + before - items;
  } else if (items > 0) {
    at = atomicAdd(p.counts + chunk, items);
  }
  if (!first) return;
  int4* to = p.items + static_cast<int64_t>(chunk) * p.chunk_rows * p.kv_heads * p.slots + at;
  for (int from = i; from < end; from += kVisits)
    *to++ = {from, min(kVisits, end - from), key / p.blocks % p.kv_heads, key % p.blocks};
}

// ---- Attention by page ------------------------------------------------------------------------

struct Shared {
  alignas(128) uint8_t k[kTokens * 256];
  alignas(128) uint8_t v[kTokens * 256];
  uint4 q[8][kThreads];  // each thread's share of the next tile
  int row[kVisits], slot[kVisits], stop[kVisits];
  int last[2];
};

// The tokens of four scales of the value page, by byte.
__device__ __forceinline__ int value_token(int step, int t, int byte) {
  return 16 * step + 8 * (byte / 2) + 2 * t + byte % 2;
}

// The token at place n of the order of this file.
__device__ __forceinline__ int token_at(int n) {
  return n / 16 * 16 + n / 2 % 2 * 8 + n % 16 / 4 * 2 + n % 2;
}

// Clear the bytes of tokens that nobody sees.
template <typename Token>
__device__ __forceinline__ uint32_t seen(uint32_t word, int stop, Token token) {
#pragma unroll
  for (int b = 0; b < 4; ++b)
    if (token(b) >= stop) word &= ~(0xFFu << (8 * b));
  return word;
}

// What a warp unpacks of a page: sixteen tokens of keys, 16 tokens x 32 dims x 2 of values.
template <Format kFormat>
struct Packed {
  static constexpr int kScaleBytes = kFormat == kMxfp4 ? 4 : 8;
  uint4 k[2], v[2];
  uint32_t k_scales[2][kScaleBytes / 4], v_scales[2][2][kFormat == kMxfp4 ? 1 : 2];  // step, half
  uint4 k_all, v_all;

  __device__ __forceinline__ static int key_token(int warp, int j, int lane) {
    return token_at((warp * 2 + j) * 8 + lane % 8);
  }

  __device__ __forceinline__ void load(const uint8_t* keys, const uint8_t* values, int warp,
                                       int lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = key_token(warp, j, lane);
      k[j] = __ldg(reinterpret_cast<const uint4*>(keys + token * 64 + lane / 8 * 16));
#pragma unroll
      for (int i = 0; i < kScaleBytes / 4; ++i)
        k_scales[j][i] = __ldg(reinterpret_cast<const uint32_t*>(keys + kCodeBytes +
                                                                 token * kScaleBytes + 4 * i));
      const int w = (warp * 2 + j) / 4, pair = (warp * 2 + j) % 4;  // dims, steps
      const int t = lane / 16 * 2 + lane % 2, g = lane % 16 / 2;
      v[j] = __ldg(reinterpret_cast<const uint4*>(values + w * 2048 + pair * 512 + g * 64 + t * 16));
#pragma unroll
      for (int i = 0; i < (kFormat == kMxfp4 ? 1 : 2); ++i) {
        const int group = kFormat == kMxfp4 ? w : 2 * w + i;
        const uint2 both = __ldg(reinterpret_cast<const uint2*>(
            values + kCodeBytes + group * kTokens + t * 32 + pair * 8));
        v_scales[j][0][i] = both.x;
        v_scales[j][1][i] = both.y;
      }
    }
    if constexpr (kFormat == kMxfp4) {
      k_all = __ldg(reinterpret_cast<const uint4*>(keys + kCodeBytes + lane * 16));
      v_all = __ldg(reinterpret_cast<const uint4*>(values + kCodeBytes + lane * 16));
    }
  }

  // Forget the scales of tokens from `stop` on: whatever lies there is garbage.
  __device__ __forceinline__ void hide(int stop, int warp, int lane) {
    const int t = lane / 16 * 2 + lane % 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kScaleBytes / 4; ++i)
        if (key_token(warp, j, lane) >= stop) k_scales[j][i] = 0;
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int i = 0; i < (kFormat == kMxfp4 ? 1 : 2); ++i)
          v_scales[j][step][i] = seen(v_scales[j][step][i], stop, [&](int b) {
            return value_token((warp * 2 + j) % 4 * 2 + step, t, b);
          });
    }
    if constexpr (kFormat == kMxfp4) {
      uint32_t* keys = reinterpret_cast<uint32_t*>(&k_all);
      uint32_t* values = reinterpret_cast<uint32_t*>(&v_all);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * lane + i >= stop) keys[i] = 0;
        values[i] = seen(values[i], stop, [&](int b) {
          return value_token(lane % 2 * 4 + i, lane % 8 / 2, b);
        });
      }
    }
  }

  // bf16 keys in shared memory, places of this file's order as rows; returns their factor.
  __device__ __forceinline__ float unpack_keys(uint8_t* to, int warp, int lane) const {
    const int t = lane / 8;
    const int largest = kFormat == kMxfp4 ? largest_byte(k_all) : 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t words[4] = {k[j].x, k[j].y, k[j].z, k[j].w};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        uint32_t factor;
        if constexpr (kFormat == kMxfp4) {
          factor = bf16_power(largest - static_cast<int>(k_scales[j][0] >> (8 * s) & 0xFF));
        } else {
          const uint32_t pair = k_scales[j][s / 2] >> (16 * (s % 2) + 8 * (t / 2));
          factor = bf16_scales((pair & 0xFF) * 0x101);
        }
        const uint2 a = four_bf16(words[s], factor, factor);             // 0 4, 2 6
        const uint2 b = four_bf16(odd_codes(words[s]), factor, factor);  // 1 5, 3 7
        const uint32_t pairs[4] = {__byte_perm(a.x, b.x, 0x5410), __byte_perm(a.y, b.y, 0x5410),
                                   __byte_perm(a.x, b.x, 0x7632), __byte_perm(a.y, b.y, 0x7632)};
#pragma unroll
        for (int c = 0; c < 4; ++c)
          *reinterpret_cast<uint32_t*>(
              to + place<kAlongPage>((warp * 2 + j) * 8 + lane % 8, 4 * s + c) + 4 * t) = pairs[c];
      }
    }
    return kFormat == kMxfp4 ? scalbnf(1.0f, largest - 127) : 0x1p8f;
  }

  // fp16 values in shared memory, dims as rows; returns their factor.
  __device__ __forceinline__ float unpack_values(uint8_t* to, int warp, int lane) const {
    const int t = lane / 16 * 2 + lane % 2, g = lane % 16 / 2;
    const int largest = kFormat == kMxfp4 ? largest_byte(v_all) : 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int w = (warp * 2 + j) / 4, pair = (warp * 2 + j) % 4;
      const uint32_t words[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t word = words[2 * step + i];
          const uint32_t scales = v_scales[j][step][kFormat == kMxfp4 ? 0 : i];
          // Bytes 0 and 2 of a word are tokens 2 t and 2 t + 1, bytes 1 and 3 those eight further.
          const uint32_t first = __byte_perm(scales, 0, 0x4140), second = __byte_perm(scales, 0, 0x4342);
          uint32_t factor, factor13;
          if constexpr (kFormat == kMxfp4) {
            factor = half_powers(first, largest);
            factor13 = half_powers(second, largest);
          } else {
            factor = half_scales(first);
            factor13 = half_scales(second);
          }
          const uint2 a = four_half(word, factor, factor13);
          const uint2 b = four_half(upper_codes(word), factor, factor13);
          const int dim = 32 * w + 16 * i + g, chunk = 2 * (2 * pair + step) + t / 2;
          uint8_t* at = to + place<kAlongPage>(dim, chunk) + t % 2 * 8;
          *reinterpret_cast<uint2*>(at) = a;
          *reinterpret_cast<uint2*>(at + 128) = b;  // eight dims further
        }
      }
    }
    return kFormat == kMxfp4 ? scalbnf(1.0f, largest - 127) : 0x1p8f;
  }
};

__device__ __forceinline__ float exp2_fast(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

__device__ __forceinline__ float most_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Ask for a lane's share of two rows of queries, m and m + 8 of the group's 64; the rows of kShared
// heads of each visit lie together.
template <int kShared>
__device__ __forceinline__ void ask_for_queries(const PrefillSparseParams& p, const Shared& s,
                                                int tile, int count, int head) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int m = warp * 16 + lane / 4 + 8 * r;
    const int visit = min(tile * (kTileRows / kShared) + m / kShared, count - 1);
    const int64_t query =
        (static_cast<int64_t>(s.row[visit]) * p.kv_heads + head) * kShared + m % kShared;
    const uint4* from = reinterpret_cast<const uint4*>(p.q + query * 256) + lane % 4;
    const uint32_t to = shared_address(&s.q[4 * r][threadIdx.x]);
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_async(to + i * kThreads * 16, from + 4 * i);
  }
}

// Softmax of a lane's two rows of logits, in place: weights, and their largest and sum.
struct Rows {
  float peak[2], total[2];
};

__device__ __forceinline__ Rows softmax(float (&d)[64], float to_log2, const int (&stop)[2],
                                        int lane) {
  Rows rows;
  if (__any_sync(~0u, min(stop[0], stop[1]) < kTokens)) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
      if (token_at(8 * (i / 4) + 2 * (lane % 4) + i % 2) >= stop[i / 2 % 2])
        d[i] = __int_as_float(0xff800000);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most = fmaxf(d[2 * r], d[2 * r + 1]);
#pragma unroll
    for (int j = 1; j < 16; ++j) most = fmaxf(most, fmaxf(d[4 * j + 2 * r], d[4 * j + 2 * r + 1]));
    most = most_of_four(most);
    rows.peak[r] = most * to_log2;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& x = d[4 * j + 2 * r + c];
        x = exp2_fast(fmaf(x, to_log2, -rows.peak[r]));
        sum += x;
      }
    rows.total[r] = sum_of_four(sum);
  }
  return rows;
}

// Leave half the dims of a lane's two rows of a visit's output: [i][lane % 4][4][2] of the row's 128
// dims, where dim 8 (4 i + x) + 2 (lane % 4) + c is at [i][lane % 4][x][c]. They are shares of the
// page's largest value, at most 12 in magnitude, times 2^12.
__device__ __forceinline__ void leave(const PrefillSparseParams& p, const float (&d)[32], int half,
                                      const Rows& rows, const int64_t (&to)[2], int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (to[r] < 0) continue;
    const float share = 0x1p12f / rows.total[r];
    uint4* at = reinterpret_cast<uint4*>(p.values + to[r] * 128) + half * 8 + lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      __half2 packed[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float* pair = d + 4 * (4 * i + x) + 2 * r;
        packed[x] = __floats2half2_rn(pair[0] * share, pair[1] * share);
      }
      __stcs(at + 4 * i, *reinterpret_cast<const uint4*>(packed));  // read once, much later
    }
  }
}

template <Format kFormat, int kShared>
__global__ void __launch_bounds__(kThreads, 2) page_kernel(const PrefillSparseParams p, int chunk) {
  constexpr int kPageBytes = kCodeBytes + kTokens * Packed<kFormat>::kScaleBytes;
  constexpr int kTileVisits = kTileRows / kShared;
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t visits = static_cast<int64_t>(p.chunk_rows) * p.kv_heads * p.slots;
  const int4* items = p.items + chunk * visits;
  const int count_items = p.counts[chunk];
  const uint64_t k = operand(shared_address(s.k), kAlongPage);
  const uint64_t v = operand(shared_address(s.v), kAlongPage);

  for (int item = blockIdx.x; item < count_items; item += gridDim.x) {
    const int4 it = items[item];
    const int count = it.y, head = it.z;
    const int64_t page = (static_cast<int64_t>(it.w) * p.kv_heads + head) * kPageBytes;
    Packed<kFormat> packed;
    packed.load(p.k + page, p.v + page, warp, lane);
    __syncthreads();  // the item before is done
    if (threadIdx.x < kVisits) {
      int stop = 0;
      if (static_cast<int>(threadIdx.x) < count) {
        const int visit = static_cast<int>(p.order[it.x + threadIdx.x]);
        const int row = visit / p.slots / p.kv_heads;
        s.row[threadIdx.x] = row;
        s.slot[threadIdx.x] = visit % p.slots;
        stop = static_cast<int>(
            min(p.positions[row] + 1 - p.listed[visit] * kTokens, static_cast<int64_t>(kTokens)));
        s.stop[threadIdx.x] = stop;
      }
      const int last = __reduce_max_sync(~0u, stop);
      if (lane == 0) s.last[warp] = last;
    }
    __syncthreads();
    if (group * kTileVisits < count) ask_for_queries<kShared>(p, s, group, count, head);
    const int last = max(s.last[0], s.last[1]);
    if (last < kTokens) packed.hide(last, warp, lane);
    const float to_log2 = p.to_log2 * packed.unpack_keys(s.k, warp, lane);
    const float v_factor = 0x1p-12f * packed.unpack_values(s.v, warp, lane);
    fence_operands();
    __syncthreads();

    for (int tile = group; tile * kTileVisits < count; tile += 2) {
      asm volatile("cp.async.wait_all;" ::: "memory");
      uint4 q[4][2];
#pragma unroll
      for (int i = 0; i < 8; ++i) q[i % 4][i / 4] = s.q[i][threadIdx.x];
      float d[64];
      products_begin();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t first[4] = {q[i][0].x, q[i][1].x, q[i][0].y, q[i][1].y};
        const uint32_t second[4] = {q[i][0].z, q[i][1].z, q[i][0].w, q[i][1].w};
        tile_product_bf16(d, first, moved(k, i * 4 * kAlongPage), i > 0);
        tile_product_bf16(d, second, moved(k, (i * 4 + 2) * kAlongPage), 1);
      }
      products_commit();
      products_wait<0>();
      products_done(d);
      if ((tile + 2) * kTileVisits < count) ask_for_queries<kShared>(p, s, tile + 2, count, head);
      int stop[2];
      int64_t to[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int m = warp % 4 * 16 + lane / 4 + 8 * r;
        const int visit = tile * kTileVisits + m / kShared;
        const bool known = visit < count;
        stop[r] = known ? s.stop[visit] : kTokens;
        const int row = known ? s.row[visit] - chunk * p.chunk_rows : 0;
        const int64_t query = (static_cast<int64_t>(row) * p.kv_heads + head) * kShared + m % kShared;
        to[r] = known ? query * p.slots + s.slot[visit] : -1;
      }
      const Rows rows = softmax(d, to_log2, stop, lane);
      uint32_t weights[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) weights[i] = pack_half(d[2 * i], d[2 * i + 1]);
#pragma unroll 1  // else registers do not suffice for two CTAs a multiprocessor
      for (int half = 0; half < 2; ++half) {
        float o[32];
        products_begin();
#pragma unroll
        for (int i = 0; i < 8; ++i)
          tile_product_half(o, weights + 4 * i, moved(v, i * 2 * kAlongPage + half * 1024), i > 0);
        products_commit();
        products_wait<0>();
        products_done(o);
        leave(p, o, half, rows, to, lane);
      }
      if (lane % 4 == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (to[r] >= 0) p.stats[to[r]] = {rows.peak[r] + log2f(rows.total[r]), v_factor};
      }
    }
  }
}

// ---- Adding up the visits of a query -------------------------------------------------------------

// A warp a query. Half a warp reads the 256 bytes a visit left.
__global__ void __launch_bounds__(256) add_kernel(const PrefillSparseParams p, int shared, int chunk,
                                                  int first_row, int rows) {
  const int lane = threadIdx.x % 32;
  const int heads = p.kv_heads * shared;
  const int64_t query = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;  // of the chunk
  if (query >= static_cast<int64_t>(rows) * heads) return;
  const int row = first_row + static_cast<int>(query / heads);
  const int head = static_cast<int>(query % heads) / shared;
  const int* keys = p.keys + (static_cast<int64_t>(row) * p.kv_heads + head) * p.slots;
  const float2* stats = p.stats + query * p.slots;
  const bool mine = lane < p.slots && keys[lane] != kNoVisit;
  const float2 stat = mine ? stats[lane] : float2{__int_as_float(0xff800000), 0.0f};
  float most = stat.x;
  for (int x = 16; x > 0; x /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, x));
  const float weight = mine ? exp2f(stat.x - most) : 0.0f;
  float total = weight;
  for (int x = 16; x > 0; x /= 2) total += __shfl_xor_sync(~0u, total, x);
  const float share = mine ? weight / total * stat.y : 0.0f;
  const uint4* values =
      reinterpret_cast<const uint4*>(p.values + query * p.slots * 128) + lane % 16;
  float sum[8] = {};
#pragma unroll 8
  for (int slot = lane / 16; slot < (p.slots + 1) / 2 * 2; slot += 2) {
    const float factor = __shfl_sync(~0u, share, slot % 32);
    const bool there = __shfl_sync(~0u, static_cast<int>(mine), slot % 32);
    uint4 raw = {0, 0, 0, 0};
    if (there) raw = __ldcs(values + static_cast<int64_t>(slot) * 16);
    const __half2* pairs = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float2 both = __half22float2(pairs[x]);
      sum[2 * x] = fmaf(factor, both.x, sum[2 * x]);
      sum[2 * x + 1] = fmaf(factor, both.y, sum[2 * x + 1]);
    }
  }
#pragma unroll
  for (int x = 0; x < 8; ++x) sum[x] += __shfl_xor_sync(~0u, sum[x], 16);
  if (lane >= 16) return;
  uint32_t* out = reinterpret_cast<uint32_t*>(p.out + (static_cast<int64_t>(row) * heads +
                                                       query % heads) * 128);
#pragma unroll
  for (int x = 0; x < 4; ++x)
    out[4 * (4 * (lane / 4) + x) + lane % 4] = pack_bf16(sum[2 * x], sum[2 * x + 1]);
}

template <Format kFormat, int kShared>
int launch_pages(const PrefillSparseParams& p, int chunk, int ctas, cudaStream_t stream) {
  static bool ready = false;
  const int bytes = sizeof(Shared);
  if (!ready) {
    const cudaError_t error = cudaFuncSetAttribute(
        page_kernel<kFormat, kShared>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    ready = true;
  }
  page_kernel<kFormat, kShared><<<ctas, kThreads, bytes, stream>>>(p, chunk);
  return cudaGetLastError();
}

template <Format kFormat>
int launch_shared(const PrefillSparseParams& p, int shared, int chunk, int ctas,
                  cudaStream_t stream) {
  switch (shared) {
    case 4: return launch_pages<kFormat, 4>(p, chunk, ctas, stream);
    case 8: return launch_pages<kFormat, 8>(p, chunk, ctas, stream);
    case 16: return launch_pages<kFormat, 16>(p, chunk, ctas, stream);
  }
  return -1;
}

}  // namespace

// First: the keys of all visits, to be sorted by the caller. Returns a cudaError_t.
extern "C" int gnomon_prefill_keys(const PrefillSparseParams* p, void* stream) {
  const int visits = p->rows * p->kv_heads * p->slots;
  key_kernel<<<(visits + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(*p);
  return cudaGetLastError();
}

// Then: everything else. Returns a cudaError_t, or -1 for a `shared` that no kernel is built for.
extern "C" int gnomon_prefill_sparse(const PrefillSparseParams* p, int nvfp4, int shared, int ctas,
                                     void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const int visits = p->rows * p->kv_heads * p->slots;
  item_kernel<<<(visits + 255) / 256, 256, 0, on>>>(*p);
  for (int chunk = 0, first = 0; first < p->rows; ++chunk, first += p->chunk_rows) {
    const int status = nvfp4 ? launch_shared<kNvfp4>(*p, shared, chunk, ctas, on)
                             : launch_shared<kMxfp4>(*p, shared, chunk, ctas, on);
    if (status) return status;
    const int rows = min(p->chunk_rows, p->rows - first);
    const int queries = rows * p->kv_heads * shared;
    add_kernel<<<(queries + 7) / 8, 256, 0, on>>>(*p, shared, chunk, first, rows);
  }
  return cudaGetLastError();
}
