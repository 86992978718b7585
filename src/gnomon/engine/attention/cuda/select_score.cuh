// Score one index page with a warpgroup: keys from shared memory into the A registers of wgmma.

#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include "hopper.cuh"

namespace {

constexpr int kTokens = 128;    // a page, and a scheduler block
constexpr int kCodeBytes = 64;  // of a token

__device__ __forceinline__ uint32_t even_codes(uint32_t w) { return w & 0x9C9C9C9Cu; }

__device__ __forceinline__ uint32_t odd_codes(uint32_t w) {
  return ((w << 2) & 0x8C8C8C8Cu) | ((w >> 2) & 0x10101010u);
}

__device__ __forceinline__ float max_or_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

// Bring in bytes that nobody reads again: what else lies in the L2 cache stays there.
__device__ __forceinline__ void bulk_copy_once(uint32_t to, const void* from, uint32_t bytes,
                                               uint32_t bar) {
  asm volatile(
      "{\n.reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], policy;\n}" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}

// What follows from the number of query columns N and the page format.
template <int N, bool kNv>
struct Shape {
  static constexpr int kScaleBytes = kNv ? 8 : 4;  // of a token
  static constexpr int kPageBytes = kTokens * (kCodeBytes + kScaleBytes);
  // NVFP4 has two scales in the 32 elements of a product: its queries come twice, once with the
  // other half of the elements zeroed, and a group is two products.
  static constexpr int kHalves = kNv ? 2 : 1;
  static constexpr int kColumns = kHalves * N;
  // A step is as many products as fill eight accumulators a lane, one at least.
  static constexpr int kProducts = N == 8 ? 2 : 1;
  static constexpr int kPerTile = 4 * kHalves / kProducts;  // steps of sixteen tokens a warp
};

// What a lane needs of one tile of sixteen tokens: its share of the codes, and its tokens' scales.
template <bool kNv>
struct Tile {
  static constexpr int kWords = kNv ? 2 : 1;
  uint32_t low[4], high[4];
  uint32_t scales[2][kWords];

  __device__ __forceinline__ void load(const uint8_t* page, int tile, int lane) {
    const uint4 a = *reinterpret_cast<const uint4*>(page + tile * 1024 + lane * 16);
    const uint4 b = *reinterpret_cast<const uint4*>(page + tile * 1024 + 512 + lane * 16);
    low[0] = a.x, low[1] = a.y, low[2] = a.z, low[3] = a.w;
    high[0] = b.x, high[1] = b.y, high[2] = b.z, high[3] = b.w;
    const uint8_t* at = page + kTokens * kCodeBytes + (tile * 16 + lane / 4) * 4 * kWords;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kNv) {
        const uint2 both = *reinterpret_cast<const uint2*>(at + r * 64);
        scales[r][0] = both.x, scales[r][1] = both.y;
      } else {
        scales[r][0] = *reinterpret_cast<const uint32_t*>(at + r * 32);
      }
    }
  }

  // Scales of row r in group s; a factor common to all does not matter.
  __device__ __forceinline__ void scale(int r, int s, float (&to)[kNv ? 2 : 1]) const {
    if constexpr (kNv) {
      const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(
          static_cast<__nv_fp8x2_storage_t>(scales[r][s / 2] >> (16 * (s % 2))), __NV_E4M3);
      const float2 both = __half22float2(__half2(pair));
      to[0] = both.x;
      to[1] = both.y;
    } else {
      const uint32_t bits = s < 3 ? scales[r][0] << (23 - 8 * s) : scales[r][0] >> 1;
      to[0] = __uint_as_float(bits & 0x7F800000u);
    }
  }
};

// Whether a byte of `scales` has all the bits that `ignored` does not have.
__device__ __forceinline__ bool has_ones(uint32_t scales, uint32_t ignored) {
  scales |= ignored;
  return ((~scales - 0x01010101u) & scales & 0x80808080u) != 0;
}

// Largest product of each query with the 32 tokens of a page that are a warp's: lane l gets those
// of rows l / 4 + 8 r of its two tiles, `most[2 i + j]` of column 8 i + 2 (l % 4) + j. `release` is
// called once the page has been read.
template <int N, bool kNv, int kDepth, typename Release>
__device__ __forceinline__ void score_page(const uint8_t* page, int part, int lane, uint64_t b,
                                           float (&most)[N / 4], Release release) {
  using Of = Shape<N, kNv>;
  constexpr int kSteps = 2 * Of::kPerTile;
  constexpr int kSums = N / 2;                          // accumulators of a product
  constexpr int kSame = Of::kHalves > Of::kProducts ? 2 : 1;  // steps with the same keys
  constexpr int kGroups = Of::kProducts > Of::kHalves ? 2 : 1;  // scale groups of a step
  constexpr int kOperands = kSame == 2 ? (kDepth + 2) / 2 : kDepth;
  Tile<kNv> tile[2];
  tile[0].load(page, 2 * part, lane);
  float sum[kDepth][Of::kProducts][kSums];
  uint32_t a[kOperands][kGroups][4];
  float score[kSums];
#pragma unroll
  for (int i = 0; i < N / 4; ++i) most[i] = __int_as_float(0xff800000);
#pragma unroll
  for (int i = 0; i < kSteps + kDepth - 1; ++i) {
    if (i < kSteps) {
      const Tile<kNv>& from = tile[i / Of::kPerTile];
      const int d = i % kDepth, o = i / kSame % kOperands;
      const int first = i % Of::kPerTile * Of::kProducts;  // product of the tile
      if (i % kSame == 0) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const int s = first / Of::kHalves + g;
          a[o][g][0] = even_codes(from.low[s]);
          a[o][g][1] = even_codes(from.high[s]);
          a[o][g][2] = odd_codes(from.low[s]);
          a[o][g][3] = odd_codes(from.high[s]);
#pragma unroll
          for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(a[o][g][w])::"memory");
        }
      }
      if (i == Of::kPerTile - 1) tile[1].load(page, 2 * part + 1, lane);
      if (i == kSteps - 1) release();
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int n = 0; n < Of::kProducts; ++n) {
        const int s = (first + n) / Of::kHalves, h = (first + n) % Of::kHalves;
        product<N>(sum[d][n], a[o][kGroups == 2 ? n : 0],
                   b + static_cast<uint64_t>((s * 32 * Of::kColumns + h * N * 16) >> 4));
      }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    const int j = i - (kDepth - 1);
    if (j >= 0) {
      const Tile<kNv>& from = tile[j / Of::kPerTile];
      const int d = j % kDepth;
      const int first = j % Of::kPerTile * Of::kProducts;
      if (i < kSteps) {
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kDepth - 1) : "memory");
      } else if (i == kSteps && kDepth == 3) {
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      } else {
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      }
#pragma unroll
      for (int n = 0; n < Of::kProducts; ++n)
#pragma unroll
        for (int c = 0; c < kSums; ++c) asm volatile("" : "+f"(sum[d][n][c])::"memory");
#pragma unroll
      for (int n = 0; n < Of::kProducts; ++n) {
        const int s = (first + n) / Of::kHalves, h = (first + n) % Of::kHalves;
        float scale[2][Of::kHalves];
        from.scale(0, s, scale[0]);
        from.scale(1, s, scale[1]);
#pragma unroll
        for (int c = 0; c < kSums; ++c)  // row c / 2 % 2, column 8 (c / 4) + c % 2 of the lane's
          score[c] = first + n == 0 ? scale[c / 2 % 2][h] * sum[d][n][c]
                                    : fmaf(scale[c / 2 % 2][h], sum[d][n][c], score[c]);
      }
      if (j % Of::kPerTile == Of::kPerTile - 1) {
#pragma unroll
        for (int c = 0; c < kSums; ++c) {
          float& best = most[2 * (c / 4) + c % 2];
          best = max_or_nan(best, score[c]);
        }
      }
    }
  }
}

// The column whose largest product lane l returns from most_of_column.
template <int N>
__device__ __forceinline__ int column_of(int lane) {
  const int pair = N == 8 ? 0 : N == 16 ? lane >> 4 : 2 * (lane >> 4) + (lane >> 3 & 1);
  const int odd = lane >> (N == 8 ? 4 : N == 16 ? 3 : 2) & 1;
  return 8 * pair + 2 * (lane % 4) + odd;
}

// Largest product of a column over a warp's tokens, from what score_page leaves.
template <int N>
__device__ __forceinline__ float most_of_column(float (&most)[N / 4], int lane) {
  int left = N / 4;
#pragma unroll
  for (int d = 16; d >= 4; d /= 2) {
    if (left > 1) {  // give one half away, keep the other
      left /= 2;
      const bool upper = lane & d;
#pragma unroll
      for (int i = 0; i < N / 8; ++i)
        if (i < left) {
          const float keep = upper ? most[i + left] : most[i];
          const float give = upper ? most[i] : most[i + left];
          most[i] = max_or_nan(keep, __shfl_xor_sync(~0u, give, d));
        }
    } else {
      most[0] = max_or_nan(most[0], __shfl_xor_sync(~0u, most[0], d));
    }
  }
  return most[0];
}

}  // namespace
