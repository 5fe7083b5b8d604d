// What a backward call carries, as plain C. Strides in elements.
#pragma once

#include "forward_args.h"

// Where the number of a row of a query tile of 64 lies: what a thread of a wgmma accumulator needs for its columns 16i + 2t,
// 16i + 2t + 1, 16i + 8 + 2t and 16i + 9 + 2t are four numbers side by side.
#if defined(__CUDACC__)
__host__ __device__
#endif
inline int place_of_row(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

extern "C" {

// `lse2` and `delta`, fp32 [batch][heads][rows padded to 64, in the order of place_of_row within a tile], and `dq_sums`, fp32
// [batch][heads][padded rows][head dim] in the order of the kernel's registers, are scratch that backward_rows.cu fills and
// empties. `work` as in the forward pass.
struct Fm3BackwardArgs {
    const void *q, *k, *v, *dout;
    void *dk, *dv;
    int64_t q_strides[3], k_strides[3], v_strides[3], dout_strides[3], dk_strides[3], dv_strides[3];  // batch, row, head
    Fm3Mask mask;
    const float *lse2, *delta;
    float* dq_sums;
    int* work;
    int batch, heads, kv_heads, bf16;
    float scale;
    int multiprocessors;
};

// Before: delta = rowsum(dout * out) - dlse and lse2 = lse * log2(e), both 0 and +inf for rows that see nothing or do not
// exist, and dq_sums = 0. After: dq = scale * dq_sums. `dlse` may be null.
struct Fm3RowsArgs {
    const void *out, *dout;
    const float *lse, *dlse;
    void* dq;
    int64_t out_strides[3], dout_strides[3], dq_strides[3], dlse_strides[3];  // batch, row, head
    float *lse2, *delta, *dq_sums;
    int batch, heads, rows, head_dim, bf16;
    float scale;
};
}
