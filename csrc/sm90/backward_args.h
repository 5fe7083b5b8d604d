// What a backward call carries, as plain C. Strides in elements.
#pragma once

#include "forward_args.h"

constexpr int kRowPadding = 128;  // what the backward pass keeps of rows is padded to a multiple of it

// Where the number of a row of a query tile of 64 lies: what a thread of a wgmma accumulator needs for its columns 16i + 2t,
// 16i + 2t + 1, 16i + 8 + 2t and 16i + 9 + 2t are four numbers side by side.
#if defined(__CUDACC__)
__host__ __device__
#endif
inline int place_of_row(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

extern "C" {

// `lse2` and `delta`: fp32 [batch][heads][padded rows, of each 64 in the order of place_of_row], made by
// backward_rows.cu. `dq_sums`: zeroed fp32, `slots` times [heads of a KV head][padded rows][head dim] in the order of the
// kernel's registers, which the KV heads of all batch items take in turn; with `fixed` they are integers. At most 64 slots.
// `ledger`: zeroed ints, 6 and 6 a KV head of a batch item, aligned to 8 bytes (see backward_sums.cuh). `work` as in the forward
// pass.
struct Fm3BackwardArgs {
    const void *q, *k, *v, *dout;
    void *dq, *dk, *dv;
    int64_t q_strides[3], k_strides[3], v_strides[3], dout_strides[3];  // batch, row, head
    int64_t dq_strides[3], dk_strides[3], dv_strides[3];
    Fm3Mask mask;
    const float *lse2, *delta, *fixed;
    float* dq_sums;
    int *ledger, *work;
    int batch, heads, kv_heads, bf16;
    float scale, dq_scale;
    int slots, multiprocessors;
};

// Before the kernel: delta = rowsum(dout * out) - dlse and lse2 = lse * log2(e), both 0 and +inf for rows that see nothing or do
// not exist, and `zeroed` bytes at `zeros` set to 0. `dlse` may be null. If `fixed` is not null, it becomes the factor from a row
// of dQ to integers, fp32 [batch][heads][padded rows], by way of `maxima`: two ints a KV head of a batch item, among the zeroed.
struct Fm3RowsArgs {
    const void *out, *dout, *k, *v;
    const float *lse, *dlse;
    int64_t out_strides[3], dout_strides[3], k_strides[3], v_strides[3], dlse_strides[3];  // batch, row, head
    float *lse2, *delta, *fixed;
    int* maxima;
    void* zeros;
    int64_t zeroed;
    int batch, heads, kv_heads, rows, columns, head_dim, bf16;
};
}
