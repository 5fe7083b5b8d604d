// Preparing a mask for the kernels: bounds of the vectors over blocks of columns, and the order of the row tiles.
//
// One launch, O(columns) memory, nothing waits for the host. A warp takes 128 columns; the last block of a mask then sees
// all its bounds, weighs every row tile and ranks them. Runs again whenever the vectors' contents change.
#include <cuda_runtime.h>

#include "../prepared.cuh"

namespace fm3 {
namespace {

constexpr int kWarps = 8;
constexpr int kFullCost = 2, kPartialCost = 3;  // of a tile, relative

__device__ __forceinline__ BlockBounds none(int rows) { return {rows, 0, rows, 0, rows, 0, rows, 0}; }

__device__ __forceinline__ BlockBounds both(const BlockBounds& a, const BlockBounds& b) {
    return {min(a.lts_min, b.lts_min), max(a.lts_max, b.lts_max), min(a.lte_min, b.lte_min), max(a.lte_max, b.lte_max),
            min(a.uts_min, b.uts_min), max(a.uts_max, b.uts_max), min(a.ute_min, b.ute_min), max(a.ute_max, b.ute_max)};
}

__device__ __forceinline__ int lowest(int x) { return __reduce_min_sync(~0u, x); }
__device__ __forceinline__ int highest(int x) { return __reduce_max_sync(~0u, x); }

__device__ __forceinline__ BlockBounds of_warp(const BlockBounds& b) {
    return {lowest(b.lts_min), highest(b.lts_max), lowest(b.lte_min), highest(b.lte_max),
            lowest(b.uts_min), highest(b.uts_max), lowest(b.ute_min), highest(b.ute_max)};
}

__device__ __forceinline__ void store(int4* record, const BlockBounds& b) {
    record[0] = int4{b.lts_min, b.lts_max, b.lte_min, b.lte_max};
    record[1] = int4{b.uts_min, b.uts_max, b.ute_min, b.ute_max};
}

__device__ __forceinline__ int load(const int* vector, int64_t at, int absent) { return vector != nullptr ? vector[at] : absent; }

__device__ __forceinline__ BlockBounds of_column(const Fm3Mask& m, int64_t at) {
    const Interval a = clipped(load(m.lts, at, 0), load(m.lte, at, m.lts != nullptr ? m.rows : 0), m.rows);
    const Interval b = clipped(load(m.uts, at, 0), load(m.ute, at, 0), m.rows);
    return {a.start, a.start, a.end, a.end, b.start, b.start, b.end, b.end};
}

// A run of row tiles.
struct Run {
    int from, to;
};

__device__ __forceinline__ Run common(Run a, Run b) { return {max(a.from, b.from), min(a.to, b.to)}; }

// Adds to the costs of a run, which are kept as differences between neighbours.
__device__ __forceinline__ void add(int* steps, Run run, int cost) {
    if (run.from >= run.to) return;
    atomicAdd(steps + run.from, cost);
    atomicAdd(steps + run.to, -cost);
}

// What one block of columns adds to the costs. Its skipped and its full row tiles are a few runs each (see masks/tiles.py),
// so this takes no look at the tiles: inclusion and exclusion over runs.
__device__ void add_column_tile(const Fm3Mask& m, const BlockBounds& b, int column_tile, int row_tiles, int* steps) {
    const auto starting_at = [&](int64_t row) { return int(min((row + kBlock - 1) / kBlock, int64_t(row_tiles))); };
    const auto ending_by = [&](int64_t row) { return row >= m.rows ? row_tiles : int(row / kBlock); };
    const Run lower{starting_at(b.lts_max), ending_by(b.lte_min)}, upper{starting_at(b.uts_max), ending_by(b.ute_min)};
    const Run cut_lower{ending_by(b.lts_min), starting_at(b.lte_max)}, cut_upper{ending_by(b.uts_min), starting_at(b.ute_max)};
    Run above{0, 0}, below{0, row_tiles};
    if (m.causal) {
        const int64_t first = int64_t(column_tile) * kBlock, end = min(first + kBlock, int64_t(m.columns));
        const int64_t diagonal = int64_t(m.columns) - m.rows;
        above.to = ending_by(max(first - diagonal, int64_t(0)));
        below.from = starting_at(max(end - 1 - diagonal, int64_t(0)));
    }
    add(steps, {0, row_tiles}, kPartialCost);
    add(steps, lower, -kPartialCost);
    add(steps, upper, -kPartialCost);
    add(steps, above, -kPartialCost);
    add(steps, common(lower, upper), kPartialCost);
    add(steps, common(lower, above), kPartialCost);
    add(steps, common(upper, above), kPartialCost);
    add(steps, common(common(lower, upper), above), -kPartialCost);
    constexpr int kSaved = kPartialCost - kFullCost;
    add(steps, below, -kSaved);
    add(steps, common(below, cut_lower), kSaved);
    add(steps, common(below, cut_upper), kSaved);
    add(steps, common(below, common(cut_lower, cut_upper)), -kSaved);
}

// Running sums of `count` numbers in shared memory, in place. By all threads of a block.
__device__ void accumulate(int* x, int count) {
    __shared__ int of_warp[kWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = ceil_div(count, 32 * kWarps);
    const int from = min(int(threadIdx.x) * each, count), to = min(from + each, count);
    int sum = 0;
    for (int i = from; i < to; ++i) sum += x[i];
    int before = sum;  // including this thread's
    for (int d = 1; d < 32; d *= 2) {
        const int left = __shfl_up_sync(~0u, before, d);
        if (lane >= d) before += left;
    }
    if (lane == 31) of_warp[warp] = before;
    __syncthreads();
    before -= sum;
    for (int i = 0; i < warp; ++i) before += of_warp[i];
    for (int i = from; i < to; ++i) x[i] = before += x[i];
    __syncthreads();
}

// The row tiles of one mask by falling cost, the later one first among equals. By all threads of a block; `costs` has room
// for one more number than there are row tiles.
__device__ void rank(const Fm3Mask& m, const int4* bounds, int* order, int* costs) {
    const int row_tiles = ceil_div(m.rows, kBlock), column_tiles = ceil_div(m.columns, kBlock);
    for (int r = threadIdx.x; r <= row_tiles; r += blockDim.x) costs[r] = 0;
    __syncthreads();
    for (int c = threadIdx.x; c < column_tiles; c += blockDim.x) {
        add_column_tile(m, load_bounds(bounds + 2 * bounds_of<kBlock>(c)), c, row_tiles, costs);
    }
    __syncthreads();
    accumulate(costs, row_tiles);
    for (int r = threadIdx.x; r < row_tiles; r += blockDim.x) {
        const int mine = costs[r];
        int before = 0;
#pragma unroll 8
        for (int other = 0; other < row_tiles; ++other) before += costs[other] > mine || (costs[other] == mine && other > r);
        order[before] = r;
    }
}

// `parts` blocks of kWarps * 128 columns a mask, `heads` masks a batch item. `tickets` are zeroed ints, one a mask, and left
// zeroed.
__global__ void __launch_bounds__(32 * kWarps, 2) prepare(
    const __grid_constant__ Fm3Mask m, int parts, int heads, int* bounds, int* order, int* tickets) {
    extern __shared__ int costs[];
    __shared__ bool last;
    const int lane = threadIdx.x % 32, blocks = ceil_div(m.columns, kBlock);
    const int mask = blockIdx.x / parts, block = blockIdx.x % parts * kWarps + threadIdx.x / 32;
    int4* mine = reinterpret_cast<int4*>(bounds) + int64_t(mask) * blocks * 6;
    if (block < blocks) {
        const int64_t base = mask / heads * m.vector_strides[0] + mask % heads * m.vector_strides[1];
        BlockBounds half[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            BlockBounds b = none(m.rows);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = block * kBlock + h * 64 + i * 32 + lane;
                if (column < m.columns) b = both(b, of_column(m, base + column * m.vector_strides[2]));
            }
            half[h] = of_warp(b);
        }
        if (lane == 0) {
            store(mine + 6 * block, both(half[0], half[1]));
            store(mine + 6 * block + 2, half[0]);
            store(mine + 6 * block + 4, half[1]);
        }
    }
    if (order == nullptr) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(tickets + mask, 1) == parts - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    rank(m, mine, order + int64_t(mask) * ceil_div(m.rows, kBlock), costs);
    if (threadIdx.x == 0) tickets[mask] = 0;
}

}  // namespace
}  // namespace fm3

// Returns a cudaError_t. `batch` and `heads` are the vectors' own; bounds int32 [batch][heads][blocks of 128 columns][3][8],
// order int32 [batch][heads][row tiles] or null.
extern "C" __attribute__((visibility("default"))) int fm3_prepare(
    const Fm3Mask* mask, int batch, int heads, int* bounds, int* order, int* tickets, void* stream) {
    const int parts = fm3::ceil_div(fm3::ceil_div(mask->columns, fm3::kBlock), fm3::kWarps);
    const int row_tiles = fm3::ceil_div(mask->rows, fm3::kBlock);
    const int64_t grid = int64_t(parts) * heads * batch;
    if (grid == 0) return 0;
    if (grid > INT32_MAX) return int(cudaErrorInvalidConfiguration);
    if (row_tiles > fm3::kMostOrdered) order = nullptr;
    fm3::prepare<<<unsigned(grid), 32 * fm3::kWarps, order == nullptr ? 0 : (row_tiles + 1) * sizeof(int), static_cast<cudaStream_t>(stream)>>>(
        *mask, parts, heads, bounds, order, tickets);
    return int(cudaGetLastError());
}

// Number of the graph capture that a stream is in, 0 outside of one.
extern "C" __attribute__((visibility("default"))) unsigned long long fm3_capture_id(void* stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    const cudaError_t error = cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id);
    return error == cudaSuccess && status == cudaStreamCaptureStatusActive ? id : 0;
}

// Zeroed ints on the current device, for counters that every launch leaves zeroed; null if there is no memory. Not from
// torch's allocator: memory that outlives a call must not come from the pool of a graph that is being made.
extern "C" __attribute__((visibility("default"))) void* fm3_counters(int count, void* stream) {
    void* memory = nullptr;
    const size_t bytes = size_t(count) * sizeof(int);
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
        cudaGetLastError();  // ours, and dealt with
        return nullptr;
    }
    return cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)) == cudaSuccess ? memory : nullptr;
}
