// Host side of the forward kernel: tensor maps, launch, error codes.
#pragma once

#include <atomic>

#include "forward.cuh"
#include "tensor_map.h"

namespace fm3 {

template <int kHeadDim, typename T>
cudaError_t launch_forward(const Fm3ForwardArgs& args, int sharing, cudaStream_t stream) {
    using F = Forward<kHeadDim, T>;
    const auto view = [&](const void* data, const int64_t (&strides)[3], int rows, int heads) {
        return TensorView{data, strides[0], strides[1], strides[2], args.batch, rows, heads, kHeadDim};
    };
    typename F::Maps maps{};
    cudaError_t error = cudaSuccess;
    const auto add = [&](CUtensorMap& map, const TensorView& x, int box_rows, int box_chunks) {
        if (error == cudaSuccess) error = encode(&map, x, args.bf16 != 0, box_rows, box_chunks);
    };
    const TensorView k = view(args.k, args.k_strides, args.mask.columns, args.kv_heads);
    const TensorView v = view(args.v, args.v_strides, args.mask.columns, args.kv_heads);
    add(maps.q, view(args.q, args.q_strides, args.mask.rows, args.heads), F::kM, F::kChunks);
    add(maps.out, view(args.out, args.out_strides, args.mask.rows, args.heads), 16, 1);
    if (sharing != kPairs) add(maps.k, k, F::kN, F::kChunks), add(maps.v, v, F::kN, F::kChunks);
    if (sharing != kAlone) add(maps.half_k, k, F::kHalfRows, F::kHalfChunks), add(maps.half_v, v, F::kHalfRows, F::kHalfChunks);
    if (error != cudaSuccess) return error;

    constexpr int kBytes = int(sizeof(typename F::Shared)) + 1024;
    static_assert(kBytes <= 232448, "more than a block's shared memory");
    const auto kernel = forward<kHeadDim, T>;
    int device;
    error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    static std::atomic<uint64_t> allowed{0};  // devices on which the kernel may use that much, a bit each
    if (device >= 64 || !(allowed >> device & 1)) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
        if (error != cudaSuccess) return error;
        if (device < 64) allowed |= uint64_t(1) << device;
    }
    const long long work = (long long)((args.mask.rows + F::kM - 1) / F::kM) * args.heads * args.batch;
    const unsigned blocks = unsigned(work < args.multiprocessors ? work : args.multiprocessors), cluster = sharing == kAlone ? 1 : 2;
    cudaLaunchAttribute clusters{};
    clusters.id = cudaLaunchAttributeClusterDimension;
    clusters.val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(max(blocks / cluster, 1u) * cluster);
    config.blockDim = dim3(F::kThreads);
    config.dynamicSmemBytes = kBytes;
    config.stream = stream;
    config.attrs = &clusters;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args, maps, sharing);
}

}  // namespace fm3
