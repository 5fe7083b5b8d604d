// What a forward call carries, as plain C: filled by Python, read by the launchers and the kernels. Strides in elements.
#pragma once

#include <cstdint>

extern "C" {

// A column mask on the device. Absent tensors are null. Strides are 0 along an axis that is shared.
struct Fm3Mask {
    const int *lts, *lte, *uts, *ute;
    int64_t vector_strides[3];    // batch, mask head, column
    const int *bounds, *order;    // what prepare.cu makes of the vectors, one part a prepared mask
    int64_t prepared_strides[2];  // batch, mask head: prepared masks
    const uint8_t* block_mask;
    int64_t block_strides[2];  // batch, mask head
    int heads, rows, columns, causal;
};

// `work` is two zeroed ints that every launch leaves zeroed.
struct Fm3ForwardArgs {
    const void *q, *k, *v;
    void* out;
    float* lse;
    int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];  // batch, row, head
    Fm3Mask mask;
    int* work;
    int batch, heads, kv_heads, bf16;
    float scale;
    int heads_together, multiprocessors;
};
}
