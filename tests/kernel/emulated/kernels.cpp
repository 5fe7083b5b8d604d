// The kernels of csrc/sm80 behind C functions, on the emulated device.
#include "device.h"

#include "sm80/backward.cuh"
#include "sm80/backward_convert.cuh"
#include "sm80/forward.cuh"

namespace {

using namespace fm3::sm80;

template <int kD, typename T>
void run_forward(const Fm3ForwardArgs& args) {
    using F = Forward<kD>;
    static_assert(sizeof(typename F::template Shared<T>) <= sizeof(device::shared));
    const int blocks = fm3::ceil_div(args.mask.rows, fm3::kBlock) * F::kRowTiles * args.heads * args.batch;
    device::launch(blocks, F::kThreads, [&] { forward<kD, T>(args); });
}

template <typename F, typename T>
void run_backward(const Fm3BackwardArgs& args) {
    static_assert(sizeof(typename F::template Shared<T>) <= sizeof(device::shared));
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

namespace {

float number(const void* data, int64_t at, int bf16) {
    return bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]) : __half2float(static_cast<const __half*>(data)[at]);
}

}  // namespace

// What backward_rows.cu is documented to do, one number after the other (csrc/sm90/backward_args.h).
extern "C" void emulate_rows(const Fm3RowsArgs* args) {
    const Fm3RowsArgs& a = *args;
    const int64_t padded = (int64_t(a.rows) + kRowPadding - 1) / kRowPadding * kRowPadding;
    std::memset(reinterpret_cast<void*>(a.zeros), 0, size_t(a.zeroed));
    for (int64_t of = 0; of < int64_t(a.batch) * a.heads; ++of) {
        const int64_t item = of / a.heads, head = of % a.heads, kv_head = head / (a.heads / a.kv_heads);
        double largest_key = 0, longest_value = 0;
        for (int64_t column = 0; column < a.columns; ++column) {
            double squares = 0;
            for (int d = 0; d < a.head_dim; ++d) {
                const float k = number(a.k, item * a.k_strides[0] + column * a.k_strides[1] + kv_head * a.k_strides[2] + d, a.bf16);
                const float v = number(a.v, item * a.v_strides[0] + column * a.v_strides[1] + kv_head * a.v_strides[2] + d, a.bf16);
                largest_key = std::max(largest_key, double(std::fabs(k))), squares += double(v) * v;
            }
            longest_value = std::max(longest_value, std::sqrt(squares));
        }
        for (int64_t row = 0; row < padded; ++row) {
            double sum = 0, squares = 0, lse = -INFINITY, dlse = 0;
            if (row < a.rows) {
                for (int d = 0; d < a.head_dim; ++d) {
                    const int64_t out = item * a.out_strides[0] + row * a.out_strides[1] + head * a.out_strides[2] + d;
                    const int64_t dout = item * a.dout_strides[0] + row * a.dout_strides[1] + head * a.dout_strides[2] + d;
                    const float y = number(a.dout, dout, a.bf16);
                    sum += double(number(a.out, out, a.bf16)) * y, squares += double(y) * y;
                }
                lse = a.lse[of * a.rows + row];
                if (a.dlse != nullptr) dlse = a.dlse[item * a.dlse_strides[0] + row * a.dlse_strides[1] + head * a.dlse_strides[2]];
            }
            const bool dead = lse == -INFINITY;
            const int64_t at = of * padded + row / 64 * 64 + place_of_row(int(row % 64));
            a.lse2[at] = dead ? INFINITY : float(lse * M_LOG2E);
            a.delta[at] = dead ? 0.f : float(sum - dlse);
            if (a.fixed == nullptr) continue;
            const double bound = 1.1 * (2 * std::sqrt(squares) * longest_value + std::fabs(dlse)) * largest_key;
            a.fixed[of * padded + row] = bound > 0 ? float(std::min(double(1 << 30) / bound, 1e37)) : 0.f;
        }
    }
}
