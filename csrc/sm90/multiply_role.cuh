// The multiply role: one warpgroup, 64 rows of every row tile of the block.
//
// The key tiles of all row tiles form one stream. A step multiplies the queries with the keys of one tile and the
// probabilities with the values of the tile before, and runs the softmax of the first product beside the second. Where a
// row tile ends, the first product already belongs to the next one, so that a short list costs no start and no drain.
// The two warpgroups know nothing of each other; that one multiplies while the other exponentiates comes by itself.
//
// In a pair of blocks the stream has tiles that only the other block needs. Before such a tile the product with values that is
// still to come is made on its own, so that nothing is under way when it is passed over, and after it a step begins without one.
#pragma once

#include <cmath>

#include "forward_shape.cuh"
#include "fragments.cuh"
#include "ptx/mma.cuh"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"
#include "softmax.cuh"

namespace fm3 {

template <typename F, typename T>
struct MultiplyRole {
    using Shared = typename F::Shared;
    static constexpr int kD = F::kD, kN = F::kN;
    const Fm3ForwardArgs& args;
    const typename F::Maps& maps;
    Shared& shared;
    int warpgroup;
    float scale_log2;
    uint32_t partner;  // how far the other block of the pair is in shared memory; 0: there is none
    ptx::Ring<F::kQueryStages> query{};
    ptx::Ring<F::kStages> key{}, value{};
    ptx::Ring<kBitStages> bits{};
    int stored = -1;  // query stage that a running store still reads

    static constexpr int kIsUnusual = kIsPartial | kIsPassed;

    struct State {
        float o[kD / 2], s[kN / 2];
        uint32_t p[kN / 16][4];
        Softmax softmax;
        bool seen;  // every row of this warp has seen a column
    };

    // Waits for the next key tile; its flags.
    __device__ __forceinline__ int next_tile() {
        ptx::wait(&shared.k_full[key.stage], key.parity);
        return shared.tile[key.stage];
    }

    __device__ __forceinline__ void scores(float (&s)[kN / 2]) {
        const T* q = shared.q[query.stage] + warpgroup * 64 * 64;
        const T* k = shared.k[key.stage];
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kD / 16; ++step) {
            const uint64_t a = ptx::descriptor(q + (step / 4) * F::kM * 64, 0) + 2 * (step % 4);
            const uint64_t b = ptx::descriptor(k + (step / 4) * kN * 64, 0) + 2 * (step % 4);
            ptx::Wgmma<kN, T, ptx::Major::kK>::shared(s, a, b, step > 0);
        }
        ptx::wgmma_commit();
    }

    // `keep` = 0: the first product of a row tile overwrites what the accumulators held.
    __device__ __forceinline__ void add_values(float (&o)[kD / 2], const uint32_t (&p)[kN / 16][4], int keep) {
        const uint64_t v = ptx::descriptor(shared.v[value.stage], kN * 128);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kN / 16; ++step) {
            ptx::Wgmma<kD, T, ptx::Major::kMN>::registers(o, p[step], v + 128 * step, step > 0 ? 1 : keep);
        }
        ptx::wgmma_commit();
    }

    __device__ __forceinline__ void hide_elements(float (&s)[kN / 2]) {
        const int thread = threadIdx.x % 128;
        ptx::wait(&shared.bits.full[bits.stage], bits.parity);
        hide<kN>(s, shared.bits.tile[bits.stage], warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4, thread % 32);
    }

    // Keys or values that are loaded for two blocks must be free in both.
    __device__ __forceinline__ void give_back(ptx::Barrier* empty, bool mine) {
        if (mine) ptx::arrive(empty);
        ptx::arrive_there(empty, mine ? partner : 0);
    }

    __device__ __forceinline__ void release_values() {
        give_back(&shared.v_empty[value.stage], threadIdx.x % 128 == 0);
        value.advance();
    }

    // The query buffer goes back once the store out of it has read it, which nobody waits for earlier than needed.
    __device__ __forceinline__ void settle_store() {
        if (stored < 0) return;
        if (threadIdx.x % 32 == 0) {
            ptx::store_wait_read();
            ptx::arrive(&shared.q_empty[stored]);
        }
        stored = -1;
    }

    // The output leaves through the queries' own buffer: every warp stores its 16 rows, which nobody else reads.
    __device__ __forceinline__ void store(float (&o)[kD / 2], const Softmax& softmax, int stage) {
        int thread = threadIdx.x % 128;
        // Opaque on purpose: the addresses below are the same for every row tile, and kept in registers they would spill.
        asm volatile("" : "+r"(thread));
        const WorkItem work = shared.work[stage];
        const int warp = thread / 32, lane = thread % 32;
        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = quad_sum(softmax.sum[h]);
            // Only a row that saw nothing has the sum 0; a NaN stays one.
            inverse[h] = sum == 0.f ? 0.f : 1.f / sum;
            const int row = work.row_tile * F::kM + warpgroup * 64 + 16 * warp + lane / 4 + 8 * h;
            if (lane % 4 == 0 && row < args.mask.rows) {
                const float lse = sum == 0.f ? -INFINITY : softmax.base[h] * args.scale + logf(sum);
                args.lse[(int64_t(work.item) * args.heads + work.head) * args.mask.rows + row] = lse;
            }
        }
        T* tile = shared.q[stage];
        const int part = lane / 8;
        store_rows(o, inverse, tile, F::kM, warpgroup * 64 + 16 * warp + 8 * (part % 2) + lane % 8, part);
        ptx::fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            const int first = warpgroup * 64 + 16 * warp;  // of this warp's rows
#pragma unroll 1
            for (int chunk = 0; chunk < F::kChunks; ++chunk) {
                const T* from = tile + chunk * F::kM * 64 + first * 64;
                ptx::tma_store(&maps.out, from, work.row_tile * F::kM + first, chunk, work.head, work.item);
            }
            ptx::store_commit();
        }
        stored = stage;
    }

    // The scores once more, by this warp alone and out of the buffers that it still holds: for a warp whose probabilities
    // came out too large. Rare, so small matters more than fast.
    __device__ __forceinline__ void scores_again(float (&s)[kN / 2]) {
        const int lane = threadIdx.x % 32, row = warpgroup * 64 + threadIdx.x % 128 / 32 * 16;
#pragma unroll
        for (int j = 0; j < kN / 16; ++j) {
#pragma unroll
            for (int i = 0; i < 8; ++i) s[8 * j + i] = 0.f;
#pragma unroll 1
            for (int d = 0; d < kD; d += 16) {
                // The 16 bytes at column c of row r of a swizzled tile lie at c/8 ^ r%8 in their chunk; half: columns 8 to 15.
                const auto at = [&](const T* tile, int rows, int r, int half) {
                    return tile + d / 64 * rows * 64 + r * 64 + ((d % 64 / 8 + half) ^ (r % 8)) * 8;
                };
                uint32_t a[4], b[4];
                ptx::load_matrices(a, at(shared.q[query.stage], F::kM, row + lane % 16, lane / 16));
                ptx::load_matrices(b, at(shared.k[key.stage], kN, 16 * j + lane / 16 * 8 + lane % 8, lane / 8 % 2));
                ptx::mma(s + 8 * j, a, b[0], b[1], T{});
                ptx::mma(s + 8 * j + 4, a, b[2], b[3], T{});
            }
        }
    }

    __device__ __forceinline__ void release_keys(int tile) {
        // Warps drift apart, and each may still need the keys: each of them gives the buffers back.
        __syncwarp();
        give_back(&shared.k_empty[key.stage], threadIdx.x % 32 == 0);
        if (threadIdx.x % 32 == 0 && tile & kIsPartial) ptx::arrive(&shared.bits.empty[bits.stage]);
        key.advance();
        if (tile & kIsPartial) bits.advance();
    }

    // Queues the two products of a step.
    __device__ __forceinline__ void multiply(State& x, int keep) {
        scores(x.s);
        ptx::wait(&shared.v_full[value.stage], value.parity);
        add_values(x.o, x.p, keep);
    }

    __device__ __forceinline__ void scores_alone(State& x) {
        scores(x.s);
        ptx::wgmma_wait<0>();
        ptx::hold(x.s);
    }

    __device__ __forceinline__ void wait_for_scores(State& x) {
        ptx::wgmma_wait<1>();
        ptx::hold(x.s);
    }

    __device__ __forceinline__ void settle_output(State& x) {
        ptx::wgmma_wait<0>();
        ptx::hold(x.o);
    }

    __device__ __forceinline__ void wait_for_output(State& x) {
        settle_output(x);
        release_values();
    }

    // How the plain steps came to an end.
    enum class Left {
        kBetween,  // after the last tile of the row tile, or before a partial or passed one, which is at hand
        kUnseen,   // in the middle of a step: a row of this warp has no base yet
        kLost,     // in the middle of a step: a base was too far, and the scores are lost
    };

    // Steps of full tiles that find their base near enough: all that most tiles ever need. This loop must stay short enough
    // for the instruction cache nearest to the scheduler, so what is rare leaves it, even in the middle of a step. All four
    // warps must issue a product by the same instruction: who leaves the loop comes back to it for the next full tile.
    __device__ __forceinline__ Left plain_steps(State& x, int& tile) {
        for (;;) {
            multiply(x, 1);
            wait_for_scores(x);
            if (!x.seen) return Left::kUnseen;
            if (!x.softmax.add_near(x.s, scale_log2)) return Left::kLost;
            release_keys(0);
            wait_for_output(x);
            pack<T>(x.s, x.p);
            if (tile & kIsLast) return Left::kBetween;
            tile = next_tile();
            if (tile & kIsUnusual) return Left::kBetween;
        }
    }

    // The product with values that is still to come, on its own.
    __device__ __forceinline__ void catch_up(State& x, int keep) {
        ptx::wait(&shared.v_full[value.stage], value.parity);
        add_values(x.o, x.p, keep);
        wait_for_output(x);
    }

    // The next tile after one whose keys were passed over, with the values of that one passed over as well. Its values need not
    // come before the next tile's keys do.
    __device__ __forceinline__ int next_after_passed() {
        const int tile = next_tile();
        ptx::wait(&shared.v_full[value.stage], value.parity);
        // One thread gives the values back for its warpgroup, and no product here holds it until all warps have seen them. With one
        // query buffer the next two values need no keys in between: a warp that comes late would find its phase gone by, and wait
        // for ever.
        if constexpr (F::kQueryStages == 1) ptx::named_sync(1 + warpgroup, 128);
        release_values();
        return tile;
    }

    // From a passed tile at hand on, within a row tile: the first that is needed, or the row tile's last with its keys given back.
    __device__ __forceinline__ int pass_within(int tile) {
        for (;;) {
            release_keys(0);
            if (tile & kIsLast) return tile;
            tile = next_after_passed();
            if (!(tile & kIsPassed)) return tile;
        }
    }

    // From any tile at hand on, between row tiles: the first that is needed, or the end.
    __device__ __forceinline__ int pass_between(int tile) {
        while (tile & kIsPassed) {
            release_keys(0);
            tile = next_after_passed();
        }
        return tile;
    }

    // The rest of a step whose scores are there, or `lost`: any tile but a row tile's first. `values`: those of the tile before
    // are part of it.
    __device__ __forceinline__ void finish_step(State& x, int tile, bool lost, bool values) {
        const bool partial = tile & kIsPartial;
        bool near = false;
        if (!lost) {
            if (partial) hide_elements(x.s);
            if (x.seen) {
                near = x.softmax.add_near(x.s, scale_log2);
                lost = !near;
            }
        }
        float fade[2];
        if (!near) {
            if (lost) {
                scores_again(x.s);
                if (partial) hide_elements(x.s);
            }
            x.softmax.add_exact(x.s, scale_log2, fade);
            x.seen = x.softmax.seen();
        }
        release_keys(tile);
        settle_output(x);
        if (values) release_values();
        if (!near) {
#pragma unroll
            for (int i = 0; i < kD / 2; ++i) x.o[i] *= fade[(i / 2) % 2];
        }
        pack<T>(x.s, x.p);
    }

    // The first scores of a row tile to probabilities.
    __device__ __forceinline__ void begin_softmax(State& x, int tile) {
        float fade[2];
        if (tile & kIsPartial) hide_elements(x.s);
        x.softmax = Softmax{};
        x.softmax.add_exact(x.s, scale_log2, fade);
        x.seen = x.softmax.seen();
        release_keys(tile);
    }

    // How a row tile ended.
    enum class Ended {
        kOneTile,  // the values of its only tile are still to come, the accumulators hold nothing
        kMore,     // the values of its last tile are still to come
        kPassing,  // passing over tiles, with nothing still to come but the values of the last of these
    };

    // All steps of the row tile whose first tile (`tile`) is done.
    __device__ __forceinline__ Ended run_row_tile(State& x, int tile) {
        int keep = 0;
        while (!(tile & kIsLast)) {
            tile = next_tile();
            Left left = Left::kBetween;
            if (keep && !(tile & kIsUnusual)) {
                left = plain_steps(x, tile);
                if (left == Left::kBetween && !(tile & kIsUnusual)) break;
            }
            const bool passing = left == Left::kBetween && tile & kIsPassed;
            if (passing) {
                catch_up(x, keep);
                settle_store();
                tile = pass_within(tile);
                if (tile & kIsPassed) return Ended::kPassing;
                scores_alone(x);
            } else if (left == Left::kBetween) {
                multiply(x, keep);
                settle_store();
                wait_for_scores(x);
            }
            finish_step(x, tile, left == Left::kLost, !passing);
            keep = 1;
        }
        return keep ? Ended::kMore : Ended::kOneTile;
    }

    __device__ void run() {
        State x;
        // With two query buffers and nothing passed over this loop runs once: the stream below does not end before the work does.
        for (int tile = pass_between(next_tile()); tile != kEnd; tile = pass_between(tile)) {
            ptx::wait(&shared.q_full[query.stage], query.parity);
            scores_alone(x);
            begin_softmax(x, tile);
            pack<T>(x.s, x.p);
            Ended ended;
            for (;;) {
                ended = run_row_tile(x, tile);
                if (F::kQueryStages == 1 || ended == Ended::kPassing) break;
                settle_store();  // the next row tile may wait for this buffer
                tile = next_tile();
                if (tile & (kEnd | kIsPassed)) break;
                // Across the border: the first scores of the next row tile, the last output of this one.
                const int stage = query.stage;
                query.advance();
                ptx::wait(&shared.q_full[query.stage], query.parity);
                multiply(x, ended == Ended::kMore);
                wait_for_scores(x);
                const Softmax finished = x.softmax;
                begin_softmax(x, tile);
                wait_for_output(x);
                store(x.o, finished, stage);
                pack<T>(x.s, x.p);
            }
            if (ended != Ended::kPassing) catch_up(x, ended == Ended::kMore);
            settle_output(x);
            settle_store();
            store(x.o, x.softmax, query.stage);
            settle_store();
            query.advance();
            if (ended == Ended::kPassing) {
                tile = next_after_passed();
            } else if (F::kQueryStages == 1) {
                tile = next_tile();
            }
        }
    }
};

}  // namespace fm3
