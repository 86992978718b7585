// Sparse decode attention over 4-bit pages, on Hopper: the query heads of one KV head and row over
// the row's list of pages.
//
// A CTA has one (row, KV head); each of its warps takes every eighth page of the list, brings keys and
// values in with asynchronous copies of 32 tokens, and keeps a running softmax of its own; the CTA merges
// them at the end, so nothing goes through global memory. Queries are the A operand (16 heads), keys
// and values the B operand of m16n8k16 bf16 products, unpacked in registers: a code's bits, moved to
// a bf16's exponent and mantissa, are a bf16 of 2^-126 times the element, and one packed product with
// the token's scale times 2^62 makes it exact at 2^-64 of its value. Both factors of 2^64 are given
// back in fp32. So scales above 2^65 (values above 3 x 10^20) count as 2^65, and elements below
// 2^-60 lose bits.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

struct SparseParams {
  const __nv_bfloat16* q;    // [rows, kv_heads * shared, 128]
  const int64_t* positions;  // [rows]
  const int64_t* request;    // [rows]
  const int64_t* table;      // [requests, width]
  const int64_t* blocks;     // [rows, kv_heads, slots]
  const uint8_t* k;          // [blocks, kv_heads, page bytes]
  const uint8_t* v;
  __nv_bfloat16* out;        // as q
  float to_log2;             // softmax scale times log2(e)
  int width, kv_heads, shared, slots;
};

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kTokens = 128;
constexpr int kPiece = 32;  // tokens copied at a time
constexpr int kStages = 2;
constexpr int kCodes = kPiece * 64;  // bytes
constexpr float kBack = 18446744073709551616.0f;  // 2^64
constexpr float kNone = -1e30f;  // a running maximum before any logit; far below every real one

template <bool kNv>
struct Page {
  static constexpr int kScaleBytes = kNv ? 8 : 4;  // of a token
  static constexpr int kBytes = kTokens * (64 + kScaleBytes);
  static constexpr int kPieceScales = kPiece * kScaleBytes;
  static constexpr int kPieceBytes = kCodes + kPieceScales;
};

template <bool kNv>
struct Shared {
  union {
    alignas(128) uint8_t ring[kWarps][kStages][2][Page<kNv>::kPieceBytes];
    float values[kWarps][16][128];
  };
  uint4 queries[8][32];  // A fragments of the eight steps of 16 dims, a lane each
  float peak[kWarps][16];
  float total[kWarps][16];
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void copy_16_bytes(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void product(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Nibbles K and K + 4 of a word, as a pair of bf16 of 2^-126 times the elements.
template <int K>
__device__ __forceinline__ uint32_t codes(uint32_t w) {
  const uint32_t magnitude = K < 2 ? w << (6 - 4 * K) : w >> (4 * K - 6);
  const uint32_t sign = w << (12 - 4 * K);
  return (magnitude & 0x01C001C0u) | (sign & 0x80008000u);
}

__device__ __forceinline__ uint32_t scaled(uint32_t pair, uint32_t by) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(by));
  return out;
}

// Add the values in nibbles K of two words to their weighted sum.
template <int K>
__device__ __forceinline__ void add(float (&to)[4], const uint4& weights, const uint32_t (&w)[2],
                                    const uint32_t (&by)[2]) {
  product(to, weights, scaled(codes<K>(w[0]), by[0]), scaled(codes<K>(w[1]), by[1]));
}

// 2^62 times a scale, as bf16 bits. Group: which of the token's scales.
template <bool kNv>
__device__ __forceinline__ uint32_t scale_bits(const uint8_t* scales, int token, int group) {
  const uint32_t code = scales[token * Page<kNv>::kScaleBytes + group];
  if constexpr (!kNv) return min(code, 192u) + 62 << 7;
  const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3);
  return __float_as_uint(__half2float(__half(half)) * 4611686018427387904.0f) >> 16;
}

// Which token of eight is column c of a tile of logits: an order in which neither the reads of keys
// (columns 2 i and 2 i + 1 together) nor those of values (all even or all odd columns) queue up at a
// shared memory bank more than they must.
__device__ __forceinline__ int token_of(int column) {
  return column ^ (column >> 1 & 1);
}

template <bool kNv>
__global__ void __launch_bounds__(kThreads, 2) sparse_kernel(const SparseParams p) {
  using P = Page<kNv>;
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<kNv>& s = *reinterpret_cast<Shared<kNv>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y;
  const int64_t position = p.positions[row], request = p.request[row];
  const int64_t* list = p.blocks + (row * p.kv_heads + head) * p.slots;
  const __nv_bfloat16* q = p.q + (row * p.kv_heads + head) * p.shared * 128;
  // Step i of 16 dims: lane t has dims 32 t + 8 (i / 2) + 2 (i % 2) + {0, 4} and one further.
  {
    const int i = warp;
    const int d = 32 * t + 8 * (i / 2) + 2 * (i % 2);
    auto pair = [&](int h, int at) -> uint32_t {
      if (h >= p.shared) return 0;
      const uint16_t* e = reinterpret_cast<const uint16_t*>(q + h * 128 + at);
      return e[0] | static_cast<uint32_t>(e[4]) << 16;
    };
    s.queries[i][lane] = {pair(g, d), pair(g + 8, d), pair(g, d + 1), pair(g + 8, d + 1)};
  }
  __syncthreads();

  float peak[2] = {kNone, kNone}, total[2] = {0, 0};
  float acc[16][4];
#pragma unroll
  for (int n = 0; n < 16; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i] = 0;

  // The warp's pieces: of its pages in turn, as far as their tokens are visible. What one page has
  // to offer is found by all lanes alike, once by the feed and once by the consumer.
  auto visible = [&](int slot, int64_t& page) -> int {  // tokens
    const int64_t block = list[slot];
    if (block < 0 || block >= p.width || position < 0 || request < 0) return 0;
    const int64_t stop = position + 1 - block * kTokens;
    page = p.table[request * p.width + block];
    return stop <= 0 || page < 0 ? 0 : static_cast<int>(stop < kTokens ? stop : kTokens);
  };
  int feed_slot = warp, feed_piece = 0, feed_stop = 0;
  int64_t feed_page = 0;
  if (feed_slot < p.slots) feed_stop = visible(feed_slot, feed_page);
  const uint32_t ring = shared_address(s.ring[warp][0][0]) + lane * 16;
  const uint32_t scales = shared_address(s.ring[warp][0][lane / 16]) + kCodes + lane % 16 * 16;
  auto feed = [&](int stage) {
    while (feed_slot < p.slots && feed_piece * kPiece >= feed_stop) {
      feed_slot += kWarps;
      feed_piece = 0;
      feed_stop = feed_slot < p.slots ? visible(feed_slot, feed_page) : 0;
    }
    if (feed_slot < p.slots) {
      const int64_t at = (feed_page * p.kv_heads + head) * P::kBytes;
      const uint8_t *keys = p.k + at, *values = p.v + at;
      const uint32_t to = stage * 2 * P::kPieceBytes;
      const int codes = feed_piece * kCodes + lane * 16;
#pragma unroll
      for (int i = 0; i < kCodes; i += 512) {
        copy_16_bytes(ring + to + i, keys + codes + i);
        copy_16_bytes(ring + to + P::kPieceBytes + i, values + codes + i);
      }
      if (lane % 16 * 16 < P::kPieceScales)  // lanes 0 to 15 for the keys, the others the values
        copy_16_bytes(scales + to, (lane < 16 ? keys : values) + kTokens * 64 +
                                       feed_piece * P::kPieceScales + lane % 16 * 16);
      ++feed_piece;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int stage = 0; stage < kStages; ++stage) feed(stage);

  const float to_log2 = p.to_log2 * kBack;
  int stage = 0;
  for (int slot = warp; slot < p.slots; slot += kWarps) {
    int64_t page = 0;
    const int stop = visible(slot, page);
    for (int first = 0; first < stop; first += kPiece) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
      __syncwarp();
      const uint8_t* keys = s.ring[warp][stage][0];
      const uint8_t* values = s.ring[warp][stage][1];
      const int left = stop - first;  // visible tokens of the piece
      float logits[4][4];
      uint4 raw[4];
      uint32_t by[4][kNv ? 2 : 1];
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        const int token = 8 * tile + token_of(g);
        raw[tile] = *reinterpret_cast<const uint4*>(keys + token * 64 + t * 16);
#pragma unroll
        for (int h = 0; h < (kNv ? 2 : 1); ++h)
          by[tile][h] = scale_bits<kNv>(keys + kCodes, token, kNv ? 2 * t + h : t) * 0x10001u;
#pragma unroll
        for (int i = 0; i < 4; ++i) logits[tile][i] = 0;
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint4 first_step = s.queries[2 * w][lane], second_step = s.queries[2 * w + 1][lane];
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
          const uint32_t word = w == 0   ? raw[tile].x
                                : w == 1 ? raw[tile].y
                                : w == 2 ? raw[tile].z
                                         : raw[tile].w;
          const uint32_t factor = by[tile][kNv ? w / 2 : 0];
          product(logits[tile], first_step, scaled(codes<0>(word), factor),
                  scaled(codes<1>(word), factor));
          product(logits[tile], second_step, scaled(codes<2>(word), factor),
                  scaled(codes<3>(word), factor));
        }
      }
      // Columns 2 t and 2 t + 1 of each tile, rows g (0, 1) and g + 8 (2, 3).
      float top[2] = {kNone, kNone};
#pragma unroll
      for (int tile = 0; tile < 4; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = 8 * tile + token_of(2 * t + i % 2);
          logits[tile][i] = token < left ? logits[tile][i] * to_log2 : -INFINITY;
          top[i / 2] = fmaxf(top[i / 2], logits[tile][i]);
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
      }
      if (__any_sync(~0u, top[0] > peak[0] || top[1] > peak[1])) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float raised = fmaxf(peak[r], top[r]), decay = power_of_2(peak[r] - raised);
          peak[r] = raised;
          total[r] *= decay;
#pragma unroll
          for (int n = 0; n < 16; ++n) {
            acc[n][2 * r] *= decay;
            acc[n][2 * r + 1] *= decay;
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // 16 tokens: one step of the contraction
        uint32_t a[4];
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float x = power_of_2(logits[2 * half + tile][2 * r] - peak[r]);
            const float y = power_of_2(logits[2 * half + tile][2 * r + 1] - peak[r]);
            total[r] += x + y;
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(a[2 * tile + r]) : "f"(y), "f"(x));
          }
        const uint4 weights = {a[0], a[1], a[2], a[3]};
        uint2 pairs[2][2];
        uint32_t factors[2];
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          uint32_t bits[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int token = 16 * half + 8 * tile + token_of(2 * t + c);
            pairs[tile][c] = *reinterpret_cast<const uint2*>(values + token * 64 + g * 8);
            // What nobody sees may be NaN, and 0 * NaN is NaN.
            const uint32_t found = scale_bits<kNv>(values + kCodes, token, kNv ? g : g / 2);
            bits[c] = token < left ? found : 0;
          }
          factors[tile] = bits[0] | bits[1] << 16;
        }
        // Column g of product n is dim 16 g + n; its tokens are two of each tile.
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          uint32_t low[2], high[2];
#pragma unroll
          for (int tile = 0; tile < 2; ++tile) {
            const uint32_t x = w ? pairs[tile][0].y : pairs[tile][0].x;
            const uint32_t y = w ? pairs[tile][1].y : pairs[tile][1].x;
            low[tile] = __byte_perm(x, y, 0x5410);
            high[tile] = __byte_perm(x, y, 0x7632);
          }
          add<0>(acc[8 * w + 0], weights, low, factors);
          add<1>(acc[8 * w + 1], weights, low, factors);
          add<2>(acc[8 * w + 2], weights, low, factors);
          add<3>(acc[8 * w + 3], weights, low, factors);
          add<0>(acc[8 * w + 4], weights, high, factors);
          add<1>(acc[8 * w + 5], weights, high, factors);
          add<2>(acc[8 * w + 6], weights, high, factors);
          add<3>(acc[8 * w + 7], weights, high, factors);
        }
      }
      __syncwarp();
      feed(stage);
      stage ^= 1;
    }
  }

  // Merge the warps.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] += __shfl_xor_sync(~0u, total[r], 1);
    total[r] += __shfl_xor_sync(~0u, total[r], 2);
    if (t == 0) {
      s.peak[warp][g + 8 * r] = peak[r];
      s.total[warp][g + 8 * r] = total[r];
    }
  }
  __syncthreads();  // every ring has been read
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float highest = kNone;
    for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, s.peak[w][g + 8 * r]);
    const float weight = power_of_2(peak[r] - highest);
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        s.values[warp][g + 8 * r][16 * (2 * t + c) + n] = acc[n][2 * r + c] * weight;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.shared * 128; i += kThreads) {
    const int h = i / 128, d = i % 128;
    float highest = kNone, sum = 0, value = 0;
    for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, s.peak[w][h]);
    for (int w = 0; w < kWarps; ++w) {
      sum += s.total[w][h] * power_of_2(s.peak[w][h] - highest);
      value += s.values[w][h][d];
    }
    const float out = sum > 0 ? value * kBack / sum : 0.0f;
    p.out[((row * p.kv_heads + head) * p.shared + h) * 128 + d] = __float2bfloat16(out);
  }
}

template <bool kNv>
int launch(const SparseParams& p, int rows, cudaStream_t stream) {
  static bool ready = false;
  const int bytes = sizeof(Shared<kNv>);
  if (!ready) {
    const cudaError_t error = cudaFuncSetAttribute(
        sparse_kernel<kNv>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    ready = true;
  }
  sparse_kernel<kNv><<<dim3(rows, p.kv_heads), kThreads, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

// Returns a cudaError_t.
extern "C" int gnomon_sparse(const SparseParams* p, int nvfp4, int rows, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return nvfp4 ? launch<true>(*p, rows, on) : launch<false>(*p, rows, on);
}
