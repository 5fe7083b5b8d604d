// In the place of csrc/sm90/ptx/wgmma.cuh: the conversions alone.
#pragma once

#include "mbarrier.cuh"

namespace fm3::ptx {

inline uint32_t packed(float low, float high, __nv_bfloat16) {
    return __bfloat16_as_ushort(__float2bfloat16(low)) | uint32_t(__bfloat16_as_ushort(__float2bfloat16(high))) << 16;
}

inline uint32_t packed(float low, float high, __half) {
    return __half_as_ushort(__float2half(low)) | uint32_t(__half_as_ushort(__float2half(high))) << 16;
}

}  // namespace fm3::ptx
