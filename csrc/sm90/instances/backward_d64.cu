// Backward, head dim 64, both 16-bit types, sums of dQ in floats and in integers.
#include "../launch_backward.cuh"

extern "C" __attribute__((visibility("default"))) int fm3_backward(const Fm3BackwardArgs* args, void* stream) {
    return int(fm3::launch_backward<64>(*args, static_cast<cudaStream_t>(stream)));
}
