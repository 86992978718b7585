// Paged attention over 4-bit pages for decode rows, on sm_90a: the query heads of one KV head and
// row over the row's listed pages (sparse), or over all of them or a window (dense).
//
// A CTA has one (row, KV head, split); each of its warpgroups takes every other page, brings keys
// and values in with bulk copies two pages ahead, and keeps a running softmax of its own. The
// unpacked codes are A operands, in registers, straight from the page's order (layouts/order.py).
//
// Scores: tokens are rows of a wgmma, the 16 query heads its columns. MXFP4 keys go in as e4m3; a
// bf16 query is exactly the sum of two e4m3 numbers (once it is scaled to the format's range by a
// power of two per head), so it takes two products, and the scales multiply the fp32 sums of their
// 32 elements. NVFP4 keys go in as fp16 times their scales, exactly.
//
// Values: dims are rows of a warp's own products, tokens are added up. Codes go in as they are,
// fp16, and their scales multiply the weights, which are fp16 too: a warp has one group of 32 dims.
// MXFP4's scales are taken relative to the largest the warp has seen; one 2^20 times smaller keeps
// its bits.
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

#include "attend_page.cuh"
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
constexpr int kListed = 128;       // pages of one list
constexpr int kStages = 2;         // pages in flight a warpgroup
constexpr int kRow = 132;          // fp32 of a head's values in shared memory: 128 and padding
constexpr float kNone = -1e30f;    // a reference before any logit; far below every real one
constexpr uint32_t kTooMuch = 0x5400;  // 64 in fp16: a weight that raises the reference

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

// List the pages of a window of kListed blocks; one warp. The blocks of a CTA's split are a range
// of all that are seen (dense), or the row's list (sparse: every split lists it all, and takes its
// share).
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
__global__ void __launch_bounds__(kThreads, 2)
    attend_kernel(const __grid_constant__ AttendParams p) {
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
