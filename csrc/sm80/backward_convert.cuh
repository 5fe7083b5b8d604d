// From sums of dQ, in the order of the backward kernel's registers, to dq. A block takes a query tile.
#pragma once

#include "../sm90/backward_args.h"
#include "../sm90/prepared.cuh"
#include "backward_shape.cuh"
#include "tile_copy.cuh"

namespace fm3::sm80 {

template <typename F, typename T>
__global__ void __launch_bounds__(F::kThreads) convert(const __grid_constant__ Fm3BackwardArgs args) {
    constexpr int kD = F::kD, kM = F::kM;
    extern __shared__ __align__(1024) unsigned char memory[];
    T* rows = reinterpret_cast<T*>(memory);
    const int tiles = ceil_div(args.mask.rows, kM), tile = blockIdx.x % tiles, of = blockIdx.x / tiles;
    const int64_t row = int64_t(of) * ceil_div(args.mask.rows, kRowPadding) * kRowPadding + int64_t(tile) * kM;
    const float* from = args.dq_sums + row * kD + threadIdx.x;
    float x[F::kSums];
#pragma unroll
    for (int i = 0; i < F::kSums; ++i) x[i] = __ldcs(from + i * F::kThreads);
#pragma unroll
    for (int i = 0; i < F::kSums; i += 2) {
        const int thread = threadIdx.x, at = F::sum_row(thread, i), column = F::sum_column(thread, i);
        float factor = args.dq_scale;
        if (args.fixed != nullptr) {
            const float to_integers = __ldg(args.fixed + row + at);
            factor = to_integers == 0.f ? 0.f : factor / to_integers;  // NaN stays NaN
            for (int e = 0; e < 2; ++e) x[i + e] = float(__float_as_int(x[i + e]));
        }
        reinterpret_cast<uint32_t*>(rows + place_of_unit<kD>(at, column / 8))[column % 8 / 2] =
            ptx::packed(x[i] * factor, x[i + 1] * factor, T{});
    }
    __syncthreads();
    constexpr int kWarpRows = kM / F::kWarps;
    T* head = static_cast<T*>(args.dq) + of / args.heads * args.dq_strides[0] + of % args.heads * args.dq_strides[2];
    store_tile<kWarpRows, kD>(rows, head, args.dq_strides[1], threadIdx.x / 32 * kWarpRows, tile * kM, args.mask.rows);
}

}  // namespace fm3::sm80
