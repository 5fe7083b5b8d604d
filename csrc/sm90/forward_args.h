// What a forward call carries, as plain C: filled by Python, read by the launcher and the kernel.
#pragma once

#include <cstdint>

extern "C" {

// Strides in elements. Mask vectors may be null (absent); their strides are 0 where an axis is shared. `bounds` are
// prepared per mask head and column tile (prepare.cuh). `work` is two zeroed ints that every launch leaves zeroed.
struct Fm3ForwardArgs {
    const void *q, *k, *v;
    void* out;
    float* lse;
    int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];  // batch, row, head
    const int *lts, *lte, *uts, *ute;
    int64_t vector_batch_stride, vector_head_stride;
    const int* bounds;
    const int* order;
    const uint8_t* block_mask;
    int64_t block_batch_stride, block_head_stride;
    int* work;
    int batch, heads, kv_heads, mask_batch, mask_heads;
    int rows, columns, head_dim, causal, bf16;
    float scale;
    int heads_together, multiprocessors;
};
}
