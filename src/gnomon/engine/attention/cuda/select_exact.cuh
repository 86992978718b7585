// Score one index page with exact products: keys and their scales in bf16, times queries in bf16.
//
// A 4-bit element times its scale is a bf16 exactly, whatever the scale, and so is a query in bf16;
// a query in fp16 is the sum of two. The tensor core's products of bf16 are exact, their sums fp32.

#pragma once

#include <stdint.h>

#include "hopper.cuh"
#include "select_score.cuh"

namespace {

__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) {  // two bf16 each
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

__device__ __forceinline__ uint32_t clamped(uint32_t a) {  // infinities become the largest finite
  asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(0x7F7F7F7F));
  asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(0xFF7FFF7F));
  return a;
}

// d (+)= a b with sixteen steps of the contraction; `add` 0 starts the sum.
template <int N>
__device__ __forceinline__ void product_bf16(float* d, const uint32_t* a, uint64_t b, int add);

template <>
__device__ __forceinline__ void product_bf16<8>(float* d, const uint32_t* a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, "
      "1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <>
__device__ __forceinline__ void product_bf16<16>(float* d, const uint32_t* a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, %12, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <>
__device__ __forceinline__ void product_bf16<32>(float* d, const uint32_t* a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,"
      "%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Where element e of a query lies among the B operands, in bytes from its column's first: step
// 2 (e / 32) + e % 2 of sixteen, whose order is that in which a lane finds a page's codes.
template <int N>
__device__ __forceinline__ int exact_place(int e) {
  const int byte = e % 8 / 2, k = 2 * (e % 32 / 8) + byte / 2 + 8 * (byte % 2);
  return (2 * (e / 32) + e % 2) * 32 * N + k / 8 * 16 * N + k % 8 * 2;
}

// Codes at bits 7, 4, 3, 2 of bytes: those of bytes 0 and 2, and of 1 and 3, as bf16 of 2^-126
// times the element.
__device__ __forceinline__ uint32_t pair_02(uint32_t codes) {
  return (codes << 8 & 0x80008000u) | (codes << 4 & 0x01C001C0u);
}

__device__ __forceinline__ uint32_t pair_13(uint32_t codes) {
  return (codes & 0x80008000u) | (codes >> 4 & 0x01C001C0u);
}

// Scale of row r in group s for this lane's elements, twice, as bf16.
template <bool kNv>
__device__ __forceinline__ uint32_t exact_scale(const Tile<kNv>& tile, int r, int s, int lane) {
  if constexpr (kNv) {
    float scale[2];
    tile.scale(r, s, scale);
    return __byte_perm(__float_as_uint(lane % 4 < 2 ? scale[0] : scale[1]), 0, 0x3232);
  } else {
    const uint32_t code = tile.scales[r][0] >> (8 * s) & 0xFF;
    const uint32_t half = code == 0 ? 0x0040 : code == 255 ? 0x7FC0 : code << 7;
    return half | half << 16;
  }
}

// As score_page, with exact products. `terms` B operands 256 N bytes apart add up to a query.
template <int N, bool kNv, int kTerms, bool kClamp>
__device__ __forceinline__ void score_page_exact(const uint8_t* page, int part, int lane,
                                                 uint64_t b, float (&most)[N / 4]) {
  constexpr int kSums = N / 2;
  float sum[2][kSums];
  uint32_t a[2][2][4];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    Tile<kNv> tile;
    tile.load(page, 2 * part + t, lane);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t scale[2] = {exact_scale<kNv>(tile, 0, s, lane),
                                 exact_scale<kNv>(tile, 1, s, lane)};
      if (t > 0 || s > 1) asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        uint32_t(&to)[4] = a[s % 2][u];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t word = r == 0 ? tile.low[s] : tile.high[s];
          const uint32_t codes = u == 0 ? even_codes(word) : odd_codes(word);
          to[r] = times(times(pair_02(codes), 0x7E807E80u), scale[r]);
          to[r + 2] = times(times(pair_13(codes), 0x7E807E80u), scale[r]);
        }
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          if constexpr (kClamp) to[w] = clamped(to[w]);
          asm volatile("" : "+r"(to[w])::"memory");
        }
      }
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int term = 0; term < kTerms; ++term)
          product_bf16<N>(sum[t], a[s % 2][u],
                          b + static_cast<uint64_t>(((2 * s + u) * 32 * N + term * 256 * N) >> 4),
                          s + u + term > 0);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int c = 0; c < kSums; ++c) asm volatile("" : "+f"(sum[t][c])::"memory");
#pragma unroll
  for (int i = 0; i < N / 4; ++i) most[i] = __int_as_float(0xff800000);
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int c = 0; c < kSums; ++c) {
      float& best = most[2 * (c / 4) + c % 2];
      best = max_or_nan(best, sum[t][c]);
    }
}

}  // namespace
