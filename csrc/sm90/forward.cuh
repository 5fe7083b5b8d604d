// The mask-aware forward kernel.
//
// A persistent block computes row tiles of 128 queries, one after another. Of its first warpgroup, one warp lists the live
// column tiles of the coming row tiles (tiles.cuh), one writes the hidden elements of partial tiles as bits
// (hidden_bits.cuh), and one follows the list with TMA loads (load_role.cuh). Two more warpgroups of 64 rows each multiply
// (multiply_role.cuh). Full tiles cost no mask work at all. Where neighbouring row tiles need the same column tiles, two blocks
// take them together (pairs.cuh).
#pragma once

#include "load_role.cuh"
#include "multiply_role.cuh"
#include "ptx/sync.cuh"

namespace fm3 {

// Who loads for whom, as the host asks for it.
enum Sharing : int {
    kAlone,   // every block for itself
    kPairs,   // the two blocks of a cluster for each other
    kEither,  // in clusters all the same; the mask decides
};

template <int kHeadDim, typename T>
__global__ void __launch_bounds__(Forward<kHeadDim, T>::kThreads, 1)
    forward(
        const __grid_constant__ Fm3ForwardArgs args, const __grid_constant__ typename Forward<kHeadDim, T>::Maps maps, int sharing) {
    using F = Forward<kHeadDim, T>;
    extern __shared__ uint8_t memory[];
    // The base of dynamic shared memory is aligned to 16 bytes only; the swizzle needs 1024. An offset, and not a rounded
    // pointer: the compiler must still see that this is shared memory, or every access becomes a generic one.
    auto& shared = *reinterpret_cast<typename F::Shared*>(memory + (-ptx::shared_address(memory) & 1023));

    bool paired = sharing == kPairs;
    if (sharing == kEither) paired = pairs_pay(args.mask, args.batch, shared.pair_sums);
    const int rank = paired ? ptx::cluster_rank() : 0;
    const uint32_t partner = paired ? ptx::distance_to(&shared, 1 - rank) : 0;

    if (threadIdx.x == 0) {
        const int blocks = paired ? 2 : 1;  // that must be done with a key or value tile
        for (int i = 0; i < F::kQueryStages; ++i) {
            ptx::barrier_init(&shared.q_full[i], 1);
            ptx::barrier_init(&shared.q_empty[i], 4 * F::kWarpgroups);
        }
        for (int i = 0; i < F::kStages; ++i) {
            ptx::barrier_init(&shared.k_full[i], 1);
            ptx::barrier_init(&shared.v_full[i], 1);
            ptx::barrier_init(&shared.k_empty[i], blocks * 4 * F::kWarpgroups);
            ptx::barrier_init(&shared.v_empty[i], blocks * F::kWarpgroups);
        }
        for (int i = 0; i < kPieces; ++i) {
            ptx::barrier_init(&shared.lists.full[i], 1);
            ptx::barrier_init(&shared.lists.empty[i], 1 + kBitWarps);  // the load role and the bit role
        }
        for (int i = 0; i < kBitStages; ++i) {
            ptx::barrier_init(&shared.bits.full[i], 1);
            ptx::barrier_init(&shared.bits.empty[i], 4 * F::kWarpgroups);
        }
        for (int i = 0; i < kMessages; ++i) {
            ptx::barrier_init(&shared.pair.full[i], 1);
            ptx::barrier_init(&shared.pair.empty[i], 1);
        }
        ptx::fence_barrier_init();
    }
    __syncthreads();
    if (paired) ptx::cluster_sync();

    if (threadIdx.x < 128) {
        ptx::registers_down<F::kLoadRegisters>();
        if (threadIdx.x < 32) {
            LoadRole<F, T>{args, maps, shared, paired, rank}.run();
        } else if (threadIdx.x < 64) {
            MaskRole<F::kM, F::kN, F::kD, T> mask{args, shared.lists};
            if (paired) {
                PairMaskRole<F::kM, F::kN, F::kD, T>{mask, shared.pair, rank}.run();
            } else {
                mask.run();
            }
        } else {
            BitRole<F::kM, F::kN>{args, shared.lists, shared.bits, int(threadIdx.x / 32) - 2}.run();
        }
    } else {
        ptx::registers_up<F::kMultiplyRegisters>();
        // From lane 0, so that the compiler knows it to be the same in the whole warp and keeps addresses in uniform registers.
        const int warpgroup = __shfl_sync(~0u, int(threadIdx.x / 128) - 1, 0);
        MultiplyRole<F, T>{args, maps, shared, warpgroup, args.scale * 1.4426950408889634f, partner}.run();
    }
    // The other block may still arrive at barriers here.
    if (paired) ptx::cluster_sync();
}

}  // namespace fm3
