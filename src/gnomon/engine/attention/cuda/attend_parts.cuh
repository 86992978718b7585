// What attention over 4-bit pages is made of: loads from shared memory, codes to numbers, products
// of a warp and of a warpgroup.

#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace {

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

// The low word of a B operand's descriptor: K-major without swizzle, core matrices of 8 columns x
// 16 bytes, 256 bytes between the two along K; the 128 between those along N are the high word.
__device__ __forceinline__ uint32_t operand(uint32_t address) {
  return address >> 4 | 256 >> 4 << 16;
}

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

// Four 8 x 8 matrices of fp16: lane 8 m + i says where row i of matrix m lies, and gets a pair of a
// row of each.
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

// A barrier of the four warps of a group; whether any of their threads says so.
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

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("max.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

}  // namespace
