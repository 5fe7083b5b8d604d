// The mask-aware backward kernel.
//
// A persistent block takes column tiles of 128 keys, one after another, and for each the query tiles that it meets in all
// query heads of its group (row_runs.cuh). Of its first warpgroup one warp finds and loads them, one says what is hidden of
// them (backward_load.cuh) and adds parts of dQ to the sums in global memory (backward_sums.cuh), and two make sums into dq
// (backward_convert.cuh); two more warpgroups of 64 keys each multiply (backward_multiply.cuh). Head dim 256 is cut another way
// (backward_wide.cuh).
#pragma once

#include "backward_convert.cuh"
#include "backward_load.cuh"
#include "backward_multiply.cuh"
#include "backward_wide.cuh"
#include "ptx/sync.cuh"

namespace fm3 {

template <typename F, typename T>
__global__ void __launch_bounds__(F::kThreads, 1)
    backward(const __grid_constant__ Fm3BackwardArgs args, const __grid_constant__ typename F::Maps maps) {
    extern __shared__ uint8_t memory[];
    // An offset, and not a rounded pointer: see forward.cuh.
    auto& shared = *reinterpret_cast<typename F::Shared*>(memory + (-ptx::shared_address(memory) & 1023));

    if (threadIdx.x == 0) {
        for (ptx::Barrier* full : {&shared.k_full, &shared.v_full}) ptx::barrier_init(full, 1);
        for (ptx::Barrier* empty : {&shared.k_empty, &shared.v_empty}) ptx::barrier_init(empty, F::kKeyReleases);
        for (int i = 0; i < F::kQueryStages; ++i) {
            ptx::barrier_init(&shared.q_full[i], 1);
            ptx::barrier_init(&shared.q_empty[i], 4 * F::kWarpgroups);
        }
        for (int i = 0; i < F::kGradStages; ++i) {
            ptx::barrier_init(&shared.dout_full[i], 1);
            ptx::barrier_init(&shared.dout_empty[i], F::kWarpgroups);
        }
        for (int i = 0; i < 2; ++i) {
            ptx::barrier_init(&shared.hidden_asked[i], 1);
            ptx::barrier_init(&shared.hidden_full[i], 1);
            ptx::barrier_init(&shared.hidden_empty[i], 4 * F::kWarpgroups);
        }
        if constexpr (!F::kWide) {
            for (int i = 0; i < 2; ++i) {
                ptx::barrier_init(&shared.ds_full[i], 4 * F::kWarpgroups);
                ptx::barrier_init(&shared.ds_empty[i], F::kWarpgroups);
                ptx::barrier_init(&shared.dq_full[i], 4);
                ptx::barrier_init(&shared.dq_empty[i], 1);
            }
            ptx::barrier_init(&shared.ahead, 4);
        }
        ptx::fence_barrier_init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        ptx::registers_down<F::kLightRegisters>();
        if (threadIdx.x < 32) BackwardLoadRole<F>{args, maps, shared}.run();
        if (threadIdx.x / 32 == 1) {
            HiddenRole<F> hidden{args, shared};
            if constexpr (F::kWide) {
                while (hidden.serve()) __nanosleep(20);
            } else {
                SumRole<F> sums{args, shared};
                // Looking takes its share of shared memory, which the products are waiting for.
                for (bool adds = true, hides = true; adds || hides; __nanosleep(120)) {
                    if (adds) adds = sums.serve();
                    if (hides) hides = hidden.serve();
                }
            }
        }
        if (threadIdx.x >= 64) ConvertRole<F, T>{args, shared, shared.converted[threadIdx.x / 32 - 2]}.run();
    } else {
        ptx::registers_up<F::kMultiplyRegisters>();
        const int warpgroup = __shfl_sync(~0u, int(threadIdx.x / 128) - 1, 0);
        const float scale_log2 = args.scale * 1.4426950408889634f;
        if constexpr (F::kWide) {
            WideMultiplyRole<F, T>{args, maps, shared, warpgroup, scale_log2}.run();
        } else {
            BackwardMultiplyRole<F, T>{args, shared, warpgroup, scale_log2}.run();
        }
    }
}

}  // namespace fm3
