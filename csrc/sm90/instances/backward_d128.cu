// Backward, head dim 128, both 16-bit types.
#include "../launch_backward.cuh"

extern "C" __attribute__((visibility("default"))) int fm3_backward(const Fm3BackwardArgs* args, void* stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    return int(args->bf16 ? fm3::launch_backward<128, __nv_bfloat16>(*args, on) : fm3::launch_backward<128, __half>(*args, on));
}
