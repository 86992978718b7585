// Paged attention over 4-bit pages for decode rows, on sm_90a: the query heads of one KV head and
// row over the row's listed pages (sparse), or over all of them or a window (dense).
//
// A CTA has one (row, KV head, split); each of its warpgroups takes every other page, brings keys and
// values in with bulk copies two pages ahead, and keeps a running softmax of its own. Both products
// are wgmma with the unpacked codes as A operand, in registers, straight from the page's order
// (layouts/order.py); queries and weights are the B operand, in shared memory.
//
// Scores: tokens are rows, the 16 query heads columns. MXFP4 keys go in as e4m3; a bf16 query is
// exactly the sum of two e4m3 numbers (once it is scaled to the format's range by a power of two per
// head), so it takes two products, and the scales multiply the fp32 sums of their 32 elements. NVFP4
// keys go in as fp16 times their scales, exactly.
//
// Values: dims are rows, tokens are added up, weights are fp16. Values go in as fp16 times their
// scales: exact for NVFP4, and for MXFP4 as long as a token's scale is at most 2^20 times smaller than
// the largest seen (a warp has one group of 32 dims, and remembers the range of its scales).
//
// Weights are 2^(logit - reference), where the reference is the largest logit when it was last
// raised. Only a weight of 64 or more raises it again: so the warps of a group meet once a page, at
// the barrier that also publishes the weights.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include "hopper.cuh"

struct AttendParams {
  const __nv_bfloat16* q;    // [rows, heads * shared, 128]
  const int64_t* positions;  // [rows]
  const int64_t* last;       // [rows], last position seen
  const int64_t* request;    // [rows]
  const int64_t* table;      // [requests, width]
  const int64_t* blocks;     // [rows, heads, slots]; null: every block
  const uint8_t* k;          // [blocks, heads, page bytes]
  const uint8_t* v;
  __nv_bfloat16* out;        // as q, if there is one split
  float* peak;               // [splits, rows * heads * shared], else
  float* total;              // the same
  float* values;             // [splits, rows * heads * shared, 128]
  int64_t window;            // dense: how many positions are seen
  float to_log2;             // softmax scale times log2(e)
  int width, heads, shared, slots, rows, splits;
};

namespace {

constexpr int kGroups = 2;  // warpgroups of a CTA
constexpr int kThreads = 128 * kGroups;
constexpr int kTokens = 128;
constexpr int kListed = 128;       // pages of one list
constexpr int kStages = 2;         // pages in flight a warpgroup
constexpr int kRow = 132;          // fp32 of a head's values in shared memory: 128 and padding
constexpr float kNone = -1e30f;    // a reference before any logit; far below every real one
constexpr uint32_t kTooMuch = 0x5400;  // 64 in fp16: a weight that raises the reference
constexpr int kHighest = 24;  // exponent field of the largest MXFP4 scale that weights can bear: 2^9
constexpr int kHeadroom = 22;      // and where the largest is put when the range is chosen

template <bool kNv>
struct Page {
  static constexpr int kScaleBytes = kNv ? 8 : 4;  // of a token
  static constexpr int kBytes = kTokens * (64 + kScaleBytes);
};

template <bool kNv>
struct Ring {
  alignas(128) uint8_t k[kStages][Page<kNv>::kBytes];
  alignas(128) uint8_t v[kStages][Page<kNv>::kBytes];
};

template <bool kNv>
struct Shared {
  union {
    Ring<kNv> ring[kGroups];
    float values[kGroups][16][kRow];
  };
  alignas(128) uint8_t weights[kGroups][2][4096];  // [step of 16 tokens] of a B operand
  alignas(128) uint8_t queries[4096];
  float back[16];  // what a head's queries were divided by
  float reference[kGroups][16];
  float found[kGroups][4][16];  // of each warp
  uint2 listed[kListed];  // page; first token seen, and from bit 16 the one past the last
  int count;  // of the list
  bool more;  // there is another window
  alignas(8) uint64_t k_full[kGroups][kStages];
  alignas(8) uint64_t v_full[kGroups][kStages];
};

__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint4 load_16(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

__device__ __forceinline__ uint2 load_8(uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
  return x;
}

__device__ __forceinline__ uint32_t load_4(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}

__device__ __forceinline__ uint32_t even_codes(uint32_t w) { return w & 0x9C9C9C9Cu; }

__device__ __forceinline__ uint32_t odd_codes(uint32_t w) {
  return ((w << 2) & 0x8C8C8C8Cu) | ((w >> 2) & 0x10101010u);
}

// The fp16 pairs of 2^-14 times the elements of a word of values: tokens 0 and 1, then 8 and 9, of
// the first dim; the same of the second.
__device__ __forceinline__ void value_pairs(uint32_t w, uint32_t (&to)[4]) {
  const uint32_t second = ((w << 7) & 0x80808080u) | ((w >> 3) & 0x0E0E0E0Eu);
  to[0] = (w << 8) & 0x8E008E00u;
  to[1] = __byte_perm(second, 0, 0x2404);
  to[2] = w & 0x8E008E00u;
  to[3] = second & 0xFF00FF00u;
}

__device__ __forceinline__ uint32_t halves_of(uint16_t e4m3_pair) {
  uint32_t out;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(e4m3_pair));
  return out;
}

__device__ __forceinline__ uint32_t low_halves(uint32_t w) {
  return halves_of(static_cast<uint16_t>(w));
}

__device__ __forceinline__ uint32_t high_halves(uint32_t w) {
  return halves_of(static_cast<uint16_t>(w >> 16));
}

__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// The low word of a B operand's descriptor: K-major without swizzle, core matrices of 8 columns x 16
// bytes, 256 bytes between the two along K; the 128 between those along N are the high word.
__device__ __forceinline__ uint32_t operand(uint32_t address) { return address >> 4 | 256 >> 4 << 16; }

// d += a * b (kFirst: d = a * b), 64 rows by 16 columns; the whole warpgroup together.
template <bool kFirst>
__device__ __forceinline__ void product_e4m3(float (&d)[8], const uint32_t (&a)[4], uint32_t b) {
  asm volatile(
      "{\n.reg .pred more;\n.reg .b64 at;\nsetp.ne.b32 more, %13, 0;\nmov.b64 at, {%12, %14};\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, at, more, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kFirst ? 0 : 1), "r"(128 >> 4));
}

template <bool kFirst>
__device__ __forceinline__ void product_half(float (&d)[8], const uint32_t (&a)[4], uint32_t b) {
  asm volatile(
      "{\n.reg .pred more;\n.reg .b64 at;\nsetp.ne.b32 more, %13, 0;\nmov.b64 at, {%12, %14};\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, at, more, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kFirst ? 0 : 1), "r"(128 >> 4));
}

// The same of one warp: 16 rows by 16 columns, both operands in registers.
__device__ __forceinline__ void product_of_warp(float (&d)[8], const uint32_t (&a)[4],
                                                const uint32_t (&b)[4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[4 * n]), "+f"(d[4 * n + 1]), "+f"(d[4 * n + 2]), "+f"(d[4 * n + 3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * n]), "r"(b[2 * n + 1]));
}

__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}

__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kLeft>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ void settled(float (&d)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ void meet(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

__device__ __forceinline__ bool meet_any(int group, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %2, 0;\nbar.red.or.pred q, %1, 128, p;\n"
      "selp.b32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(group + 1), "r"(static_cast<uint32_t>(mine))
      : "memory");
  return any != 0;
}

// Column of entry i of a lane's sums, less 2 t.
__device__ __forceinline__ constexpr int column(int i) { return i % 2 + 8 * (i / 4); }

// The same as an index of the lane's four columns.
__device__ __forceinline__ constexpr int own(int i) { return i % 2 + 2 * (i / 4); }

// Put the queries of a row and KV head into shared memory as B operands.
template <bool kNv>
__device__ void load_queries(const AttendParams& p, Shared<kNv>& s, int row, int head) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const __nv_bfloat16* q = p.q + (static_cast<int64_t>(row) * p.heads + head) * p.shared * 128;
#pragma unroll
  for (int n = warp; n < 16; n += kThreads / 32) {
    uint2 raw = {0, 0};
    if (n < p.shared) raw = reinterpret_cast<const uint2*>(q + n * 128)[lane];
    float x[4] = {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000u),
                  __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xFFFF0000u)};
    float most = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    // The largest goes to [2^7, 2^8).
    const uint32_t exponent = max(8u, __float_as_uint(most) >> 23);
    const float by = __uint_as_float((261 - exponent) << 23);
    // Keys go in as 2^-6 of their values.
    if (lane == 0) s.back[n] = __uint_as_float((exponent - 7) << 23) * p.to_log2 * 64.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int e = 4 * lane + j, group = e / 32, inside = e % 32;
      const float scaled = x[j] * by;
      if constexpr (kNv) {
        const int k = 2 * (inside / 8) + inside % 8 / 2 % 2 + 8 * (inside % 8 / 4);
        const int step = 2 * group + inside % 2;
        *reinterpret_cast<__half*>(s.queries + step * 512 + k / 8 * 256 + n / 8 * 128 + n % 8 * 16 +
                                   k % 8 * 2) = __float2half(scaled);
      } else {
        const __nv_fp8_storage_t high = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
        const float rest =
            scaled - __half2float(__half(__nv_cvt_fp8_to_halfraw(high, __NV_E4M3)));
        uint8_t* to = s.queries + group * 512 + inside % 2 * 256 + n / 8 * 128 + n % 8 * 16 +
                      inside / 2;
        to[0] = high;
        to[2048] = __nv_cvt_float_to_fp8(rest, __NV_SATFINITE, __NV_E4M3);
      }
    }
  }
}

// What a lane adds to its addresses in a page, and in a step of the weights.
struct Places {
  uint32_t codes;         // keys and values: 16 bytes a lane
  uint32_t key_scales;    // of the lane's first token
  uint32_t value_scales;  // of its tokens
  uint32_t weights;       // where it says a row of a matrix goes
};

// The keys of 16 tokens a warp as A operands, and the products with the queries: the page's first
// tile is multiplied while the second is unpacked, the second while the first is weighed.
template <bool kNv>
struct Keys;

template <>
struct Keys<false> {
  uint32_t a[4][4];

  __device__ __forceinline__ void load(uint32_t codes, uint32_t, const bool (&)[2]) {
    const uint4 low = load_16(codes), high = load_16(codes + 512);
    const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      a[g][0] = even_codes(words[0][g]);
      a[g][1] = even_codes(words[1][g]);
      a[g][2] = odd_codes(words[0][g]);
      a[g][3] = odd_codes(words[1][g]);
    }
  }
};

template <>
struct Keys<true> {
  uint32_t a[8][4];

  __device__ __forceinline__ void load(uint32_t codes, uint32_t scales, const bool (&seen)[2]) {
    // A lane's elements of a 32-element group lie in one scale group.
    const uint32_t pick = threadIdx.x % 4 / 2 ? 0x7531 : 0x6420;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 raw = load_16(codes + 512 * r);
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
      const uint2 both = load_8(scales + 64 * r);
      const uint32_t mine = seen[r] ? __byte_perm(both.x, both.y, pick) : 0;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const uint32_t pair = g < 2 ? low_halves(mine) : high_halves(mine);
        const uint32_t by = __byte_perm(pair, pair, g % 2 ? 0x3232 : 0x1010);
        const uint32_t even = even_codes(words[g]), odd = odd_codes(words[g]);
        a[2 * g][r] = times(low_halves(even), by);
        a[2 * g][2 + r] = times(high_halves(even), by);
        a[2 * g + 1][r] = times(low_halves(odd), by);
        a[2 * g + 1][2 + r] = times(high_halves(odd), by);
      }
    }
  }
};

template <bool kNv>
struct Scores;

template <>
struct Scores<false> {
  float sum[4][8];

  __device__ __forceinline__ void start(const Keys<false>& keys, uint32_t queries) {
    products_begin();
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      product_e4m3<true>(sum[g], keys.a[g], queries + (g * 512 >> 4));
      product_e4m3<false>(sum[g], keys.a[g], queries + (2048 + g * 512 >> 4));
    }
    products_commit();
  }

  // Logits: out[i] is token i / 2 % 2 of the lane's two, column own(i). One not `seen` gets -inf.
  __device__ __forceinline__ void finish(uint32_t scales, const bool (&seen)[2], float (&out)[8]) {
    float by[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t raw = seen[r] ? load_4(scales + 32 * r) : 0;
      by[r][0] = __uint_as_float(raw << 23 & 0x7F800000u);
      by[r][1] = __uint_as_float(raw << 15 & 0x7F800000u);
      by[r][2] = __uint_as_float(raw << 7 & 0x7F800000u);
      by[r][3] = __uint_as_float(raw >> 1 & 0x7F800000u);
    }
    const float bias[2] = {seen[0] ? 0.0f : -INFINITY, seen[1] ? 0.0f : -INFINITY};
    products_wait<0>();
#pragma unroll
    for (int g = 0; g < 4; ++g) settled(sum[g]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = i / 2 % 2;
      out[i] = fmaf(by[r][0], sum[0][i], bias[r]);
      out[i] = fmaf(by[r][1], sum[1][i], out[i]);
      out[i] = fmaf(by[r][2], sum[2][i], out[i]);
      out[i] = fmaf(by[r][3], sum[3][i], out[i]);
    }
  }
};

template <>
struct Scores<true> {
  float sum[8];

  __device__ __forceinline__ void start(const Keys<true>& keys, uint32_t queries) {
    products_begin();
    product_half<true>(sum, keys.a[0], queries);
#pragma unroll
    for (int step = 1; step < 8; ++step)
      product_half<false>(sum, keys.a[step], queries + (step * 512 >> 4));
    products_commit();
  }

  __device__ __forceinline__ void finish(uint32_t, const bool (&seen)[2], float (&out)[8]) {
    products_wait<0>();
    settled(sum);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = seen[i / 2 % 2] ? sum[i] : -INFINITY;
  }
};

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("max.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// Weights of 16 tokens of a warp: to shared memory as fp16 and added to `sums`. Returns the largest
// of the even and of the odd columns.
__device__ __forceinline__ uint32_t weigh(const float (&logits)[8], const float (&back)[4],
                                          const float (&reference)[4], uint32_t to,
                                          float (&sums)[4]) {
  uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float w[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = own(2 * i + c);
      w[c] = power_of_2(fmaf(logits[2 * i + c], back[column], -reference[column]));
      sums[column] += w[c];
    }
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits[i]) : "f"(w[1]), "f"(w[0]));
  }
  // Matrices in the order of `bits`: tokens 0 to 7, then 8 to 15, of columns 0 to 7; then 8 to 15.
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
               : "memory");
  return larger(larger(bits[0], bits[1]), larger(bits[2], bits[3]));
}

// Scales of a lane's tokens of one group: word k has those of tokens 16 k + 2 t + {0, 1, 8, 9}. Those
// from `left` read as 0: what nobody sees may be NaN, and 0 * NaN is NaN.
__device__ __forceinline__ void load_scales(uint32_t at, int left, uint32_t (&raw)[8]) {
  const uint4 a = load_16(at), b = load_16(at + 16);
  raw[0] = a.x, raw[1] = a.y, raw[2] = a.z, raw[3] = a.w;
  raw[4] = b.x, raw[5] = b.y, raw[6] = b.z, raw[7] = b.w;
  if (left < kTokens) {
#pragma unroll 1
    for (int k = 0; k < 8; ++k) {
      uint32_t mask = 0;
#pragma unroll
      for (int b = 0; b < 4; ++b)
        if (16 * k + 8 * (b / 2) + 2 * static_cast<int>(threadIdx.x % 4) + b % 2 < left)
          mask |= 0xFFu << (8 * b);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i == k) raw[i] &= mask;
    }
  }
}

// MXFP4: exponent fields, a byte each, of 2^-15 and up for scale byte `base` and up. Raises `base`,
// and with it lowers the sums so far, where a scale lies above the range.
__device__ __forceinline__ void fields(uint32_t (&raw)[8], int& base, float (&acc)[2][8]) {
  uint32_t field[8], outside = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    field[i] = raw[i] - static_cast<uint32_t>(base) * 0x01010101u;
    outside |= field[i] | (field[i] + (31 - kHighest) * 0x01010101u);
  }
  if (__any_sync(~0u, (outside & 0xE0E0E0E0u) != 0)) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) most = __vmaxu4(most, raw[i]);
    most = max(max(most & 0xFF, most >> 8 & 0xFF), max(most >> 16 & 0xFF, most >> 24));
    const int highest = static_cast<int>(__reduce_max_sync(~0u, most));
    if (highest > base + kHighest) {
      const float decay = power_of_2(static_cast<float>(base - (highest - kHeadroom)));
      base = highest - kHeadroom;
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[0][i] *= decay, acc[1][i] *= decay;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      field[i] = 0;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int one = static_cast<int>(raw[i] >> (8 * b) & 0xFF) - base;
        field[i] |= static_cast<uint32_t>(max(0, one)) << (8 * b);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) raw[i] = field[i];
}

// Add a page's values, weighted, to the sums: rows of product i are dims 32 warp + 16 i and up. The
// values' scales multiply the weights, which each warp loads for itself.
template <bool kNv>
__device__ __forceinline__ void add_values(uint32_t codes, uint32_t scales_at, int left,
                                           uint32_t weights, int& base, float (&acc)[2][8]) {
  uint32_t scales[kNv ? 2 : 1][8];
  load_scales(scales_at, left, scales[0]);
  if constexpr (kNv)
    load_scales(scales_at + kTokens, left, scales[1]);
  else
    fields(scales[0], base, acc);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const uint4 raw = load_16(codes + c * 512);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * c + half;
      uint32_t weight[4];
      load_matrices(weights + step * 512, weight);
      uint32_t b[kNv ? 2 : 1][4];
#pragma unroll
      for (int i = 0; i < (kNv ? 2 : 1); ++i) {
        uint32_t first, second;
        if constexpr (kNv) {
          first = low_halves(scales[i][step]);
          second = high_halves(scales[i][step]);
        } else {
          first = __byte_perm(scales[0][step], 0, 0x1404) << 2;
          second = __byte_perm(scales[0][step], 0, 0x3424) << 2;
        }
        b[i][0] = times(weight[0], first);
        b[i][1] = times(weight[1], second);
        b[i][2] = times(weight[2], first);
        b[i][3] = times(weight[3], second);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
        value_pairs(words[2 * half + i], a);
        product_of_warp(acc[i], a, b[kNv ? i : 0]);
      }
    }
  }
}

// List the pages of a window of kListed blocks; one warp. The blocks of a CTA's split are a range of
// all that are seen (dense), or of the row's list (sparse: every split lists it all, and takes its share).
template <bool kNv>
__device__ __noinline__ void list_pages(const AttendParams& p, Shared<kNv>& s, int window,
                                        int64_t position, int64_t last, int64_t request) {
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32;
  const bool live = position >= 0 && request >= 0, sparse = p.blocks != nullptr;
  const int64_t seen_from = sparse ? 0 : max(int64_t{0}, position + 1 - p.window);
  int begin = 0, end = 0;
  if (sparse) {
    end = live ? p.slots : 0;
  } else if (live) {
    const int first = static_cast<int>(seen_from / kTokens);
    const int final = static_cast<int>(last / kTokens);
    const int per_split = (final - first + p.splits) / p.splits;
    begin = first + static_cast<int>(blockIdx.z) * per_split;
    end = min(begin + per_split, final + 1);
  }
  begin += window * kListed;
  int count = 0;
  for (int i = begin + lane; i - lane < min(end, begin + kListed); i += 32) {
    int64_t block = -1, page = -1;
    if (i < end) {
      block = i;
      if (sparse) block = p.blocks[(static_cast<int64_t>(row) * p.heads + head) * p.slots + i];
      if (block >= 0 && block < p.width && block * kTokens <= last)
        page = p.table[request * p.width + block];
    }
    const uint32_t some = __ballot_sync(~0u, page >= 0);
    if (page >= 0) {
      const int n = count + __popc(some & ((1u << lane) - 1));
      const int64_t start = block * kTokens;
      const int from = static_cast<int>(max(int64_t{0}, seen_from - start));
      const int stop = static_cast<int>(min(int64_t{kTokens}, last + 1 - start));
      s.listed[n] = {static_cast<uint32_t>(page * p.heads + head),
                     static_cast<uint32_t>(from | stop << 16)};
    }
    count += __popc(some);
  }
  if (lane == 0) s.count = count, s.more = begin + kListed < end;
}

template <bool kNv>
__global__ void __launch_bounds__(kThreads, 2) attend_kernel(const __grid_constant__ AttendParams p) {
  constexpr int kBytes = Page<kNv>::kBytes;
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<kNv>& s = *reinterpret_cast<Shared<kNv>*>(memory);
  // Uniform values in uniform registers.
  const int of_cta = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int group = of_cta / 4, warp = of_cta % 4, lane = threadIdx.x % 32;
  const uint32_t shared = __shfl_sync(~0u, shared_address(memory), 0);

  if (threadIdx.x < kGroups * kStages) {
    barrier_init(shared_address(&s.k_full[0][0] + threadIdx.x));
    barrier_init(shared_address(&s.v_full[0][0] + threadIdx.x));
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  const int row = blockIdx.x, head = blockIdx.y, split = blockIdx.z;
  const int step = p.blocks != nullptr ? p.splits : 1;
  const int first = (p.blocks != nullptr ? split : 0) + step * group, stride = step * kGroups;
  const int64_t position = p.positions[row], last = p.last[row], request = p.request[row];
  wait_for_kernel_before();
  let_next_kernel_start();
  __syncthreads();  // the barriers are there

  // Bring in the keys or the values of a group's page i, the n-th it has had.
  auto fetch = [&](int i, uint32_t n, int of_group, const uint8_t* pool, uint32_t ring,
                   uint32_t full) {
    const int listed = (first - step * group + step * of_group) + i * stride;
    if (listed >= s.count) return;
    const uint32_t stage = n % kStages;
    const uint8_t* from = pool + static_cast<uint64_t>(s.listed[listed].x) * kBytes;
    barrier_expect(full + 8 * stage, kBytes);
    bulk_copy(ring + stage * kBytes, from, kBytes, full + 8 * stage);
  };
  const uint32_t rings = shared, ring_bytes = sizeof(Ring<kNv>);
  const uint32_t k_barriers = shared + offsetof(Shared<kNv>, k_full);
  const uint32_t v_barriers = shared + offsetof(Shared<kNv>, v_full);
  if (of_cta == 0) {
    list_pages(p, s, 0, position, last, request);
    __syncwarp();
    if (lane < kGroups)
      for (int i = 0; i < 2; ++i) {
        const uint32_t ring = rings + lane * ring_bytes;
        fetch(i, i, lane, p.k, ring, k_barriers + lane * kStages * 8);
        fetch(i, i, lane, p.v, ring + kStages * kBytes, v_barriers + lane * kStages * 8);
      }
  }
  load_queries<kNv>(p, s, row, head);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();

  float acc[2][8], total[4] = {0, 0, 0, 0}, reference[4], back[4];
#pragma unroll
  for (int i = 0; i < 8; ++i) acc[0][i] = acc[1][i] = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) reference[c] = kNone;
  int base = -1;
  uint32_t turn = 0;  // pages this group has had
  const uint32_t queries = operand(shared + offsetof(Shared<kNv>, queries));
  Places at;
  at.codes = lane * 16;
  at.key_scales = lane / 4 * Page<kNv>::kScaleBytes;
  at.value_scales = lane % 4 * 32;
  at.weights = lane / 8 % 2 * 256 + lane / 16 * 128 + lane % 8 * 16;
  asm volatile("" : "+r"(at.codes), "+r"(at.key_scales), "+r"(at.value_scales), "+r"(at.weights));
  const uint32_t k_ring = rings + group * ring_bytes;
  const uint32_t v_ring = k_ring + kStages * kBytes;
  const uint32_t k_full = k_barriers + group * kStages * 8;
  const uint32_t v_full = v_barriers + group * kStages * 8;
  const uint32_t all_weights = shared + offsetof(Shared<kNv>, weights) + group * 8192;
  const bool feeds = warp == 0 && lane == 0;

#pragma unroll
  for (int c = 0; c < 4; ++c) back[c] = s.back[2 * (lane % 4) + c % 2 + 8 * (c / 2)];

  for (int window = 0;; ++window) {
    const int pages = s.count > first ? (s.count - first + stride - 1) / stride : 0;
    const uint32_t list = shared + offsetof(Shared<kNv>, listed) + 8 * first;
    for (int i = 0; i < pages; ++i) {
      const uint32_t stage = (turn + i) % kStages, parity = (turn + i) / kStages & 1;
      const uint32_t bound = load_4(list + 8 * stride * i + 4);
      const int from = bound & 0xFFFF, stop = bound >> 16;
      const uint32_t keys = k_ring + stage * kBytes, values = v_ring + stage * kBytes;
      const uint32_t weights = all_weights + stage * 4096;
      float logits[2][8], sums[4] = {0, 0, 0, 0};
      uint32_t largest;
      barrier_wait(k_full + 8 * stage, parity);
      bool seen[2][2];
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int token = 16 * (4 * j + warp) + lane / 4 + 8 * r - from;
          seen[j][r] = static_cast<uint32_t>(token) < static_cast<uint32_t>(stop - from);
        }
      const uint32_t codes = keys + warp * 1024 + at.codes;
      const uint32_t scales =
          keys + kTokens * 64 + warp * 16 * Page<kNv>::kScaleBytes + at.key_scales;
      constexpr int kNext = 64 * Page<kNv>::kScaleBytes;
      Keys<kNv> first_keys, second_keys;
      Scores<kNv> first_scores, second_scores;
      first_keys.load(codes, scales, seen[0]);
      first_scores.start(first_keys, queries);
      second_keys.load(codes + 4096, scales + kNext, seen[1]);
      first_scores.finish(scales, seen[0], logits[0]);
      second_scores.start(second_keys, queries);
      largest = weigh(logits[0], back, reference, weights + warp * 512 + at.weights, sums);
      second_scores.finish(scales + kNext, seen[1], logits[1]);
      largest = larger(largest, weigh(logits[1], back, reference,
                                      weights + (4 + warp) * 512 + at.weights, sums));
      if (meet_any(group, (largest & 0xFFFF) >= kTooMuch || largest >> 16 >= kTooMuch)) {
        // A weight of 64 or more: raise the references of all columns, and weigh again.
        float most[4] = {kNone, kNone, kNone, kNone};
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 8; ++e)
            most[own(e)] = fmaxf(most[own(e)], logits[j][e] * back[own(e)]);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
          for (int d = 4; d < 32; d *= 2)
            most[c] = fmaxf(most[c], __shfl_xor_sync(~0u, most[c], d));
          if (lane < 4) s.found[group][warp][2 * lane + c % 2 + 8 * (c / 2)] = most[c];
        }
        meet(group);
        float decay[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int column = 2 * (lane % 4) + c % 2 + 8 * (c / 2);
          float raised = reference[c];
          for (int w = 0; w < 4; ++w) raised = fmaxf(raised, s.found[group][w][column]);
          decay[c] = power_of_2(reference[c] - raised);
          reference[c] = raised;
          total[c] *= decay[c];
          sums[c] = 0;
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) acc[0][e] *= decay[own(e)], acc[1][e] *= decay[own(e)];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          weigh(logits[j], back, reference, weights + (4 * j + warp) * 512 + at.weights, sums);
        meet(group);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) total[c] += sums[c];
      if (feeds) {
        fetch(i + 2, turn + i, group, p.k, k_ring, k_full);
        if (i > 0) fetch(i + 1, turn + i + 1, group, p.v, v_ring, v_full);
      }
      barrier_wait(v_full + 8 * stage, parity);
      add_values<kNv>(values + warp * 2048 + at.codes,
                      values + kTokens * 64 + warp * (kNv ? 2 : 1) * kTokens + at.value_scales,
                      stop, weights + at.weights, base, acc);
    }
    turn += pages;
    const bool more = s.more;
    __syncthreads();
    if (!more) break;
    if (of_cta == 0)
      list_pages(p, s, window + 1, p.positions[row], p.last[row], p.request[row]);
    __syncthreads();
    if (feeds)
      for (int i = 0; i < 2; ++i) {
        fetch(i, turn + i, group, p.k, k_ring, k_full);
        fetch(i, turn + i, group, p.v, v_ring, v_full);
      }
  }

  // Merge the groups.
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    for (int d = 4; d < 32; d *= 2) total[c] += __shfl_xor_sync(~0u, total[c], d);
    const int at = 2 * (lane % 4) + c % 2 + 8 * (c / 2);
    if (lane < 4) s.found[group][warp][at] = total[c];
    if (lane < 4 && warp == 0) s.reference[group][at] = reference[c];
  }
  const float unit = kNv ? 1.0f : power_of_2(static_cast<float>(base - 98));
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int e = 0; e < 8; ++e)
      s.values[group][2 * (lane % 4) + column(e)][32 * warp + 16 * i + lane / 4 + 8 * (e / 2 % 2)] =
          acc[i][e] * unit;
  __syncthreads();
  const int h = threadIdx.x / 16, d = threadIdx.x % 16 * 8;
  float highest = kNone, sum = 0, weight[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) highest = fmaxf(highest, s.reference[g][h]);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    weight[g] = power_of_2(s.reference[g][h] - highest);
    for (int w = 0; w < 4; ++w) sum += s.found[g][w][h] * weight[g];
  }
  if (h >= p.shared) return;
  // NVFP4's values went in as 2^-14 of their size.
  const bool direct = p.splits == 1;
  const float share =
      (kNv ? 16384.0f : 1.0f) * (!direct ? 1.0f : sum != 0 ? 1.0f / sum : 0.0f);
  float value[8];
#pragma unroll
  for (int e = 0; e < 8; ++e)
    value[e] = (s.values[0][h][d + e] * weight[0] + s.values[1][h][d + e] * weight[1]) * share;
  const int64_t query = (static_cast<int64_t>(row) * p.heads + head) * p.shared + h;
  if (direct) {
    uint4 packed;
    __nv_bfloat162* pair = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int e = 0; e < 4; ++e) pair[e] = __floats2bfloat162_rn(value[2 * e], value[2 * e + 1]);
    *reinterpret_cast<uint4*>(p.out + query * 128 + d) = packed;
  } else {
    const int64_t part = static_cast<int64_t>(split) * p.rows * p.heads * p.shared + query;
    float4* to = reinterpret_cast<float4*>(p.values + part * 128 + d);
    to[0] = {value[0], value[1], value[2], value[3]};
    to[1] = {value[4], value[5], value[6], value[7]};
    if (d == 0) {
      p.peak[part] = sum != 0 ? highest : -INFINITY;
      p.total[part] = sum;
    }
  }
}

template <bool kNv>
int launch(const AttendParams& p, cudaStream_t stream) {
  static bool ready = false;
  const int bytes = sizeof(Shared<kNv>);
  if (!ready) {
    const cudaError_t error = cudaFuncSetAttribute(
        attend_kernel<kNv>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    ready = true;
  }
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(p.rows, p.heads, p.splits);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, attend_kernel<kNv>, p);
}

}  // namespace

// Returns a cudaError_t.
extern "C" int gnomon_attend(const AttendParams* p, int nvfp4, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return nvfp4 ? launch<true>(*p, on) : launch<false>(*p, on);
}
