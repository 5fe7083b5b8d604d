// The kernels of csrc/sm80 behind C functions, on the emulated device.
#include "device.h"
#include "rows.h"

#include "sm80/backward.cuh"
#include "sm80/backward_convert.cuh"
#include "sm80/forward.cuh"

namespace {

using namespace fm3::sm80;

template <int kD, typename T>
void run_forward(const Fm3ForwardArgs& args) {
    using F = Forward<kD>;
    static_assert(sizeof(typename F::template Shared<T>) <= device::kMemory);
    const int blocks = fm3::ceil_div(args.mask.rows, fm3::kBlock) * F::kRowTiles * args.heads * args.batch;
    device::launch(blocks, F::kThreads, [&] { forward<kD, T>(args); });
}

template <typename F, typename T>
void run_backward(const Fm3BackwardArgs& args) {
    static_assert(sizeof(typename F::template Shared<T>) <= device::kMemory);
    const int blocks = fm3::ceil_div(args.mask.columns, F::kN) * args.kv_heads * args.batch;
    const auto kernel = args.fixed != nullptr ? backward<F, T, true> : backward<F, T, false>;
    device::launch(blocks, F::kThreads, [&] { kernel(args); });
    device::launch(fm3::ceil_div(args.mask.rows, F::kM) * args.heads * args.batch, F::kThreads, [&] { convert<F, T>(args); });
}

template <typename T>
void run_backward(const Fm3BackwardArgs& args, int head_dim, bool small) {
    if (head_dim == 64) return run_backward<Backward<64, 128, 64>, T>(args);
    small ? run_backward<Backward<128, 64, 32>, T>(args) : run_backward<Backward<128, 128, 64>, T>(args);
}

template <typename T>
void run_forward(const Fm3ForwardArgs& args, int head_dim) {
    if (head_dim == 64) run_forward<64, T>(args);
    if (head_dim == 128) run_forward<128, T>(args);
    if (head_dim == 256) run_forward<256, T>(args);
}

}  // namespace

extern "C" void emulate_forward(const Fm3ForwardArgs* args, int head_dim, int late, int seed) {
    device::late = late != 0, device::chance.seed(seed);
    args->bf16 ? run_forward<__nv_bfloat16>(*args, head_dim) : run_forward<__half>(*args, head_dim);
}

extern "C" void emulate_backward(const Fm3BackwardArgs* args, int head_dim, int small, int late, int seed) {
    device::late = late != 0, device::chance.seed(seed);
    args->bf16 ? run_backward<__nv_bfloat16>(*args, head_dim, small != 0) : run_backward<__half>(*args, head_dim, small != 0);
}
