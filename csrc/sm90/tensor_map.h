// Host side of TMA: the tensor map of a strided [batch, length, heads, head dim] tensor of 16-bit elements.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace fm3 {

// A tensor as the kernels receive it: strides in elements, the head dim contiguous.
struct TensorView {
    const void* data;
    int64_t batch_stride, row_stride, head_stride;
    int batch, rows, heads, head_dim;
};

using EncodeTiled = CUresult (*)(
    CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's encoder, found at run time so that the library does not link libcuda.
inline EncodeTiled encoder() {
    static EncodeTiled found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result;
        const cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(function) : nullptr;
    }();
    return found;
}

// Axes (64 elements, row, chunk of the head, head, batch item); one box is `box_rows` rows of `box_chunks` chunks.
// Returns cudaErrorInvalidValue when the driver refuses the tensor (a base or a stride that is no multiple of 16 bytes).
inline cudaError_t encode(CUtensorMap* map, const TensorView& x, bool bf16, int box_rows, int box_chunks) {
    const EncodeTiled encode_tiled = encoder();
    if (encode_tiled == nullptr) return cudaErrorNotSupported;
    const cuuint64_t sizes[5] = {64, cuuint64_t(x.rows), cuuint64_t(x.head_dim / 64), cuuint64_t(x.heads), cuuint64_t(x.batch)};
    // Bytes from one index to the next, for every axis but the first.
    const cuuint64_t strides[4] = {
        cuuint64_t(x.row_stride) * 2, 128, cuuint64_t(x.head_stride) * 2, cuuint64_t(x.batch_stride) * 2};
    const cuuint32_t box[5] = {64, cuuint32_t(box_rows), cuuint32_t(box_chunks), 1, 1};
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    const CUresult result = encode_tiled(
        map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5, const_cast<void*>(x.data), sizes,
        strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace fm3
