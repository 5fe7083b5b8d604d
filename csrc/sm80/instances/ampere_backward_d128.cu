// Backward, head dim 128, both 16-bit types.
#include "../launch_backward.cuh"

namespace {

using Large = fm3::sm80::Backward<128, 128, 64>;
using Small = fm3::sm80::Backward<128, 64, 32>;

}  // namespace

extern "C" __attribute__((visibility("default"))) int fm3_backward(const Fm3BackwardArgs* args, void* stream) {
    using fm3::sm80::launch_backward;
    const auto on = static_cast<cudaStream_t>(stream);
    return int(args->bf16 ? launch_backward<__nv_bfloat16, Large, Small>(*args, on) : launch_backward<__half, Large, Small>(*args, on));
}
