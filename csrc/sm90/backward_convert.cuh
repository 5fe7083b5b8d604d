// From sums to dq, beside the multiplying: two warps of every block.
//
// KV heads come to be complete in any order, and are made into dq in that order, in shares of kRowPadding rows that warps take
// from a counter. Pieces of sums are copied to shared memory, some on their way at a time, those of the next share behind those
// of this one; zeros take their place for the slot's next user. A KV head that is not complete is never waited for while there
// are pieces to be made, and one that is waits for nothing but this.
//
// Instructions that go by way of shared memory are what these warps spend their time on, in a queue behind the products'
// operands: two warps, on two schedulers, are nearly twice as fast as one.
#pragma once

#include "backward_sums.cuh"
#include "fragments.cuh"
#include "ptx/copy.cuh"

namespace fm3 {

template <typename F, typename T>
struct ConvertRole {
    using Shared = typename F::Shared;
    static constexpr int kD = F::kD, kM = F::kM;
    static constexpr int kGroups = F::kSumColumns / 32, kPartPieces = 4 * kGroups;  // pieces of a warp's rows; of a warpgroup's part
    static constexpr int kTilePieces = kM * kD / kPiece;
    static constexpr bool kByRows = F::kSumRows < kM;  // parts of a query tile
    static constexpr unsigned kPieces = kRowPadding * kD / kPiece;             // of a share
    const Fm3BackwardArgs& args;
    Shared& shared;
    Converted<F::kPieceStages>& mine;
    unsigned asked = 0, made = 0;  // pieces so far
    unsigned ticket = 0;           // of the first lane: the next share

    // Opaque: what follows from it would be kept in registers all the time.
    __device__ __forceinline__ int lane() const {
        int lane = threadIdx.x % 32;
        asm volatile("" : "+r"(lane));
        return lane;
    }

    __device__ __forceinline__ unsigned shares() const {  // of a KV head
        int rows = args.mask.rows;
        asm volatile("" : "+r"(rows));  // opaque, as above
        return unsigned(ceil_div(rows, kRowPadding)) * (args.heads / args.kv_heads);
    }

    // Looked at later, since it takes a while.
    __device__ __forceinline__ void take_next() {
        if (lane() == 0) ticket = atomicAdd(Ledger(args).taken, 1u);
    }

    enum class Next { kBegun, kNotComplete, kNone };

    // Begins the share taken last, if its KV head is complete: where it lies goes to shared memory.
    __device__ __forceinline__ Next begin_share() {
        Next next = Next::kNone;
        if (lane() == 0) {
            const unsigned shares = this->shares();
            if (ticket < shares * args.kv_heads * args.batch) {
                next = Next::kNotComplete;
                if (const int64_t complete = number_at(Ledger(args).completed + ticket / shares) - 1; complete >= 0) {
                    next = Next::kBegun;
                    const int head = int(complete / kMostSlots), parts = ceil_div(args.mask.rows, kRowPadding);
                    const int share = int(ticket % shares), row = share % parts * kRowPadding;
                    const int item = head / args.kv_heads, group = args.heads / args.kv_heads;
                    const int query_head = head % args.kv_heads * group + share / parts;
                    mine.shares[asked / kPieces % 2] = {
                        args.dq_sums + (complete % kMostSlots * shares + share) * (kRowPadding * kD),
                        static_cast<T*>(args.dq) + item * args.dq_strides[0] + row * args.dq_strides[1] + query_head * args.dq_strides[2],
                        (int64_t(item) * args.heads + query_head) * parts * kRowPadding + row, args.mask.rows - row, head};
                    ptx::fence_async_proxy_everywhere();
                }
            }
        }
        next = static_cast<Next>(__shfl_sync(~0u, static_cast<int>(next), 0));
        if (next == Next::kBegun) take_next();
        __syncwarp();
        return next;
    }

    // A piece's first row and column of its share.
    static __device__ __forceinline__ int row_of(int piece) {
        const int first = kByRows ? piece / kPartPieces * F::kSumRows : piece / kTilePieces * kM;
        return first + piece / kGroups % 4 * 16;
    }
    static __device__ __forceinline__ int column_of(int piece) {
        const int first = kByRows ? 0 : piece % kTilePieces / kPartPieces * F::kSumColumns;
        return first + piece % kGroups * 32;
    }

    // Every lane copies what it needs itself.
    __device__ __forceinline__ void ask() {
        const unsigned stage = asked % F::kPieceStages, piece = asked % kPieces;
        const auto& share = mine.shares[asked / kPieces % 2];
        const int lane = this->lane();
        const float4* from = reinterpret_cast<const float4*>(share.sums + piece * kPiece) + lane;
        float4* to = reinterpret_cast<float4*>(mine.pieces[stage]) + lane;
#pragma unroll
        for (int i = 0; i < 4; ++i) ptx::copy16(to + 32 * i, from + 32 * i);
        if constexpr (F::kFixed) {
            const float* factors = args.fixed + share.rows + row_of(piece) + lane / 4;
#pragma unroll
            for (int h = 0; h < 2; ++h) ptx::copy4(&mine.factors[stage][h][lane], factors + 8 * h);
        }
        ptx::copy_commit();
        ++asked;
    }

    __device__ __forceinline__ void make() {
        const auto& share = mine.shares[made / kPieces % 2];
        const unsigned stage = made % F::kPieceStages, piece = made % kPieces;
        const int lane = this->lane(), row = row_of(piece) + lane / 4;
        if (F::kPieceStages > 1 && asked - made > 1) {
            ptx::copy_wait<1>();
        } else {
            ptx::copy_wait<0>();
        }
        float factor[2] = {args.dq_scale, args.dq_scale};
        if constexpr (F::kFixed) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float to_integers = mine.factors[stage][h][lane];
                factor[h] = to_integers == 0.f ? 0.f : args.dq_scale / to_integers;  // NaN stays NaN
            }
        }
        const float4* from = reinterpret_cast<const float4*>(mine.pieces[stage]) + lane;
        float4* sums = reinterpret_cast<float4*>(share.sums + piece * kPiece) + lane;
        uint32_t packed[2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float4 four = from[32 * i];
            float x[4] = {four.x, four.y, four.z, four.w};
            if constexpr (F::kFixed) {
                for (float& number : x) number = float(__float_as_int(number));
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) packed[h][i] = ptx::packed(x[2 * h] * factor[h], x[2 * h + 1] * factor[h], T{});
            __stcg(sums + 32 * i, float4{0.f, 0.f, 0.f, 0.f});
        }
        T* to = static_cast<T*>(share.dq) + row * args.dq_strides[1] + column_of(piece) + lane % 4 * 8;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint4 eight = exchanged(packed[h][0], packed[h][1], packed[h][2], packed[h][3]);
            if (row + 8 * h < share.end) *reinterpret_cast<uint4*>(to + 8 * h * args.dq_strides[1]) = eight;
        }
        ++made;
    }

    // The share's sums are zero again; if it was the KV head's last, the slot is free.
    __device__ __forceinline__ void end_share() const {
        ptx::fence_async_proxy_everywhere();
        __syncwarp();
        if (lane() == 0) {
            const Ledger ledger(args);
            const int head = mine.shares[(made - 1) / kPieces % 2].head;
            __threadfence();
            if (atomicAdd(ledger.made + head, 1u) == shares() - 1) {
                __threadfence();
                atomicAnd(ledger.used, ~(1ull << (ledger.slot[head] - 1)));
            }
        }
        __syncwarp();
    }

    __device__ void run() {
        take_next();
        for (bool more = true;;) {
            while (more && asked - made < F::kPieceStages) {
                if (asked % kPieces == 0) {
                    const Next next = begin_share();
                    more = next != Next::kNone;
                    if (next != Next::kBegun) break;
                }
                ask();
            }
            if (asked != made) {
                make();
                if (made % kPieces == 0) end_share();
            } else if (more) {
                __nanosleep(100);
            } else {
                return;
            }
        }
    }
};

}  // namespace fm3
