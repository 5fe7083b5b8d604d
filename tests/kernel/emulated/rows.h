// What csrc/sm90/instances/backward_rows.cu is documented to do, behind its C function.
#pragma once

#include "device.h"

#include "sm90/backward_args.h"

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
