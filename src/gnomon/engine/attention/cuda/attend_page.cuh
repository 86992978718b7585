// One page of attention for one row: its keys against the queries, weights from logits, and its
// values by the weights.

#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "attend_parts.cuh"

namespace {

constexpr int kTokens = 128;
constexpr int kHighest = 24;   // exponent field of the largest MXFP4 scale weights can bear: 2^9
constexpr int kHeadroom = 22;  // and where the largest is put when the range is chosen

template <bool kNv>
struct Page {
  static constexpr int kScaleBytes = kNv ? 8 : 4;  // of a token
  static constexpr int kBytes = kTokens * (64 + kScaleBytes);
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

// Scales of a lane's tokens of one group: word k has those of tokens 16 k + 2 t + {0, 1, 8, 9}.
// Those from `left` read as 0: what nobody sees may be NaN, and 0 * NaN is NaN.
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

}  // namespace
