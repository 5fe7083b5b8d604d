// Preparing a mask for the kernels: minimum and maximum of each vector over every block of columns.
//
// One warp a block, one launch, O(columns) memory. Runs again whenever the vectors' contents change; nothing here waits
// for the host.
#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/tile_class.h"

namespace fm3 {
namespace {

__device__ __forceinline__ int lowest(int x) { return __reduce_min_sync(~0u, x); }
__device__ __forceinline__ int highest(int x) { return __reduce_max_sync(~0u, x); }

// Vectors int32 [masks][columns] with a stride between masks, absent ones null; bounds int32 [masks][tiles][8].
__global__ void __launch_bounds__(128) column_bounds(
    const int* lts, const int* lte, const int* uts, const int* ute, int64_t stride, int rows, int columns, int tile, int tiles,
    int64_t blocks, int* bounds) {
    const int lane = threadIdx.x % 32;
    const int64_t block = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    if (block >= blocks) return;
    const int64_t mask = block / tiles;
    const int first = int(block % tiles) * tile, last = min(first + tile, columns);
    BlockBounds b{rows, 0, rows, 0, rows, 0, rows, 0};
    for (int j = first + lane; j < last; j += 32) {
        const int64_t at = mask * stride + j;
        const Interval lower = clipped(
            lts != nullptr ? lts[at] : 0, lte != nullptr ? lte[at] : (lts != nullptr ? rows : 0), rows);
        const Interval upper = clipped(uts != nullptr ? uts[at] : 0, ute != nullptr ? ute[at] : 0, rows);
        b.lts_min = min(b.lts_min, lower.start);
        b.lts_max = max(b.lts_max, lower.start);
        b.lte_min = min(b.lte_min, lower.end);
        b.lte_max = max(b.lte_max, lower.end);
        b.uts_min = min(b.uts_min, upper.start);
        b.uts_max = max(b.uts_max, upper.start);
        b.ute_min = min(b.ute_min, upper.end);
        b.ute_max = max(b.ute_max, upper.end);
    }
    const int4 low{lowest(b.lts_min), highest(b.lts_max), lowest(b.lte_min), highest(b.lte_max)};
    const int4 high{lowest(b.uts_min), highest(b.uts_max), lowest(b.ute_min), highest(b.ute_max)};
    if (lane == 0) {
        reinterpret_cast<int4*>(bounds)[2 * block] = low;
        reinterpret_cast<int4*>(bounds)[2 * block + 1] = high;
    }
}

}  // namespace
}  // namespace fm3

// Returns a cudaError_t. `stride`: elements between the vectors of two masks.
extern "C" __attribute__((visibility("default"))) int fm3_column_bounds(
    const int* lts, const int* lte, const int* uts, const int* ute, int64_t stride, int masks, int rows, int columns, int tile,
    int* bounds, void* stream) {
    const int tiles = (columns + tile - 1) / tile;
    const int64_t blocks = int64_t(masks) * tiles;
    if (blocks == 0) return 0;
    const int64_t grid = (blocks + 3) / 4;
    fm3::column_bounds<<<unsigned(grid), 128, 0, static_cast<cudaStream_t>(stream)>>>(
        lts, lte, uts, ute, stride, rows, columns, tile, tiles, blocks, bounds);
    return int(cudaGetLastError());
}
