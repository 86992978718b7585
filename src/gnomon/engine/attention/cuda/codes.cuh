// From packed 4-bit codes to the tensor cores' types: the byte orders of layouts/order.py.
//
// Keys: a byte has an even code's sign and magnitude in bits 7 and 4..2, and an odd one's in the
// others. Values: a lower code's in bits 7 and 3..1, an upper one's (eight dims further) in 0 and 6..4.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

enum Format { kMxfp4, kNvfp4 };

namespace {

// Odd codes where the even ones were. Other bits are not cleared.
__device__ __forceinline__ uint32_t odd_codes(uint32_t w) {
  const uint32_t up = w << 2, down = w >> 2;
  return (up & 0x8C8C8C8Cu) | (down & ~0x8C8C8C8Cu);
}

__device__ __forceinline__ uint32_t times_half2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

__device__ __forceinline__ uint32_t times_bf162(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// Four codes times a power of two, as e4m3. Codes are read as fp16 of 2^-14 times their value; the
// product's bits, without the top one of its exponent (0 by choice of the factor), are e4m3's.
__device__ __forceinline__ uint32_t four_e4m3(uint32_t w, uint32_t factor) {
  const uint32_t a = times_half2((w << 7) & 0x0E000E00u, factor);  // bytes 0 and 2
  const uint32_t b = times_half2((w >> 1) & 0x0E000E00u, factor);  // bytes 1 and 3
  const uint32_t bytes = ((a >> 7) & 0x00FF00FFu) | ((b << 1) & 0xFF00FF00u);
  return bytes | (w & 0x80808080u);
}

// Four codes times factors, as bf16: bytes 0 and 2, then 1 and 3. Codes are read as bf16 of 2^-126
// times their value.
__device__ __forceinline__ uint2 four_bf16(uint32_t w, uint32_t factor, uint32_t factor13) {
  const uint32_t a = ((w << 8) & 0x80008000u) | ((w << 4) & 0x01C001C0u);
  const uint32_t b = (w & 0x80008000u) | ((w >> 4) & 0x01C001C0u);
  return {times_bf162(a, factor), times_bf162(b, factor13)};
}

// The upper codes of values where the lower ones were.
__device__ __forceinline__ uint32_t upper_codes(uint32_t w) {
  return ((w >> 3) & 0x0E0E0E0Eu) | ((w << 7) & 0x80808080u);
}

// Four codes of values times factors, as fp16: bytes 0 and 2, then 1 and 3. Codes are read as fp16
// of 2^-14 times their value.
__device__ __forceinline__ uint2 four_half(uint32_t w, uint32_t factor, uint32_t factor13) {
  return {times_half2((w << 8) & 0x8E008E00u, factor), times_half2(w & 0x8E008E00u, factor13)};
}

// The factor for a power of two `below` powers under the page's largest scale, twice.
__device__ __forceinline__ uint32_t bf16_power(int below) {
  return max(253 - below, 0) * 0x00800080u;  // 2^(126 - below): products come out as shares
}

__device__ __forceinline__ uint32_t half_power(int below) {
  return max(27 - below, 0) * 0x04000400u;  // 2^(12 - below): products come out as e4m3 of 2^6
}

// e4m3 scales in bytes 0 and 1, times 2^118, in bf16: products come out as 2^-8 times the value.
__device__ __forceinline__ uint32_t bf16_scales(uint32_t pair) {
  const __half2_raw raw =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  const float2 both = __half22float2(__half2(raw));
  const __nv_bfloat162 wide = __floats2bfloat162_rn(both.x * 0x1p118f, both.y * 0x1p118f);
  return *reinterpret_cast<const uint32_t*>(&wide);
}

// Factors of two groups whose scale bytes are the 16-bit halves of `pair`: shares of the largest
// scale, times 2^14, in fp16; 0 from 2^-29 on.
__device__ __forceinline__ uint32_t half_powers(uint32_t pair, int largest) {
  return __viaddmax_s16x2(pair, ((29 - largest) & 0xFFFF) * 0x10001u, 0) << 10;
}

// The same for e4m3 scales: their values times 2^6.
__device__ __forceinline__ uint32_t half_scales(uint32_t pair) {
  return times_half2((pair & 0x007F007Fu) << 7, 0x74007400u);
}

// The largest of a warp's bytes, sixteen a lane.
__device__ __forceinline__ int largest_byte(const uint4& x) {
  const uint32_t low = __vmaxu2(__vmaxu2(x.x & 0xFF00FFu, x.y & 0xFF00FFu),
                                __vmaxu2(x.z & 0xFF00FFu, x.w & 0xFF00FFu));
  const uint32_t high = __vmaxu2(__vmaxu2(x.x >> 8 & 0xFF00FFu, x.y >> 8 & 0xFF00FFu),
                                 __vmaxu2(x.z >> 8 & 0xFF00FFu, x.w >> 8 & 0xFF00FFu));
  const uint32_t most = __vmaxu2(low, high);
  return __reduce_max_sync(~0u, max(most & 0xFFFFu, most >> 16));
}

// Where chunk `c` (16 bytes along the contraction) of row `r` of an operand lies, see operand().
template <int kAlong>
__device__ __forceinline__ int place(int r, int c) {
  return c * kAlong + r / 8 * 128 + r % 8 * 16;
}

}  // namespace
