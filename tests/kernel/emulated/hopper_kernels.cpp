// The backward pass of csrc/sm90 behind C functions, on the emulated device: one block takes all items.
#include <cuda_runtime.h>

#include "device.h"
#include "rows.h"

namespace device {

template <typename Kernel, typename... Args>
cudaError_t run(Kernel kernel, unsigned count, const Args&... args);

}  // namespace device

#include "sm90/launch_backward.cuh"

template <typename Kernel, typename... Args>
cudaError_t device::run(Kernel kernel, unsigned count, const Args&... args) {
    for (auto& of_warpgroup : fm3::ptx::products) of_warpgroup = {};
    if (!launch(1, count, [&] { kernel(args...); })) return cudaErrorLaunchTimeout;
    return pending.empty() ? cudaSuccess : cudaErrorUnknown;
}

extern "C" int emulate_backward(const Fm3BackwardArgs* args, int head_dim, int seed) {
    device::late = seed % 2 == 0;
    device::chance.seed(seed);
    if (head_dim == 64) return int(fm3::launch_backward<64>(*args, nullptr));
    if (head_dim == 128) return int(fm3::launch_backward<128>(*args, nullptr));
    if (head_dim == 256) return int(fm3::launch_backward<256>(*args, nullptr));
    return int(cudaErrorInvalidValue);
}
