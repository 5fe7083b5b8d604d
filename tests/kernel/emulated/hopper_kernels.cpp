// The kernels of csrc/sm90 behind C functions, on the emulated device: one block, or one cluster of two, takes all items.
#include <cuda_runtime.h>

#include "device.h"
#include "rows.h"

namespace device {

template <typename Kernel, typename... Args>
cudaError_t run(unsigned in_cluster, Kernel kernel, unsigned count, const Args&... args);

}  // namespace device

#include "sm90/launch_backward.cuh"
#include "sm90/launch_forward.cuh"

template <typename Kernel, typename... Args>
cudaError_t device::run(unsigned in_cluster, Kernel kernel, unsigned count, const Args&... args) {
    for (auto& of_warpgroup : fm3::ptx::products) of_warpgroup = {};
    if (!launch(in_cluster, count, [&] { kernel(args...); }, in_cluster)) return cudaErrorLaunchTimeout;
    return pending.empty() ? cudaSuccess : cudaErrorUnknown;
}

extern "C" int emulate_forward(const Fm3ForwardArgs* args, int sharing, int head_dim, int seed, int slow) {
    device::late = seed % 2 == 0, device::slow = slow;
    device::chance.seed(seed);
    const auto launch = [&](auto type) {
        using T = decltype(type);
        if (head_dim == 64) return fm3::launch_forward<64, T>(*args, sharing, nullptr);
        if (head_dim == 128) return fm3::launch_forward<128, T>(*args, sharing, nullptr);
        if (head_dim == 256) return fm3::launch_forward<256, T>(*args, sharing, nullptr);
        return cudaErrorInvalidValue;
    };
    return int(args->bf16 ? launch(__nv_bfloat16{}) : launch(__half{}));
}

extern "C" int emulate_backward(const Fm3BackwardArgs* args, int head_dim, int seed) {
    device::late = seed % 2 == 0, device::slow = -1;
    device::chance.seed(seed);
    if (head_dim == 64) return int(fm3::launch_backward<64>(*args, nullptr));
    if (head_dim == 128) return int(fm3::launch_backward<128>(*args, nullptr));
    if (head_dim == 256) return int(fm3::launch_backward<256>(*args, nullptr));
    return int(cudaErrorInvalidValue);
}

// What pair_rule.cuh counts of some masks: live tiles, and tiles that one block of a pair would pass over.
extern "C" void emulate_count_pairs(const Fm3Mask* mask, int masks, unsigned long long* counts) {
    const int blocks = fm3::ceil_div(mask->columns, fm3::kBlock);
    fm3::PairSums sums{0, 0};
    for (int64_t block = 0; block < int64_t(masks) * blocks; ++block) {
        const int64_t first = block % blocks * fm3::kBlock;
        const fm3::BlockBounds bounds = fm3::load_bounds(reinterpret_cast<const int4*>(mask->bounds) + block * 6);
        fm3::count_pairs(fm3::RowRuns<fm3::kBlock>(*mask, bounds, first, first + fm3::kBlock), sums);
    }
    counts[0] = sums.live, counts[1] = sums.passed;
}
