// Forward, head dim 256, both 16-bit types.
#include "../launch_forward.cuh"

extern "C" __attribute__((visibility("default"))) int fm3_forward(const Fm3ForwardArgs* args, int sharing, void* stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    return int(args->bf16 ? fm3::launch_forward<256, __nv_bfloat16>(*args, sharing, on) : fm3::launch_forward<256, __half>(*args, sharing, on));
}
