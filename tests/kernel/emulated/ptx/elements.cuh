// Elements of 16 bits on the emulated device: as numbers, in pairs, and where lanes have those of an 8x8 matrix.
#pragma once

#include <cstdint>

namespace fm3::ptx {

inline float number(uint16_t bits, __nv_bfloat16) { return __bfloat162float(__ushort_as_bfloat16(bits)); }
inline float number(uint16_t bits, __half) { return __half2float(__ushort_as_half(bits)); }

inline uint32_t packed(float low, float high, __nv_bfloat16) {
    return __bfloat16_as_ushort(__float2bfloat16(low)) | uint32_t(__bfloat16_as_ushort(__float2bfloat16(high))) << 16;
}

inline uint32_t packed(float low, float high, __half) {
    return __half_as_ushort(__float2half(low)) | uint32_t(__half_as_ushort(__float2half(high))) << 16;
}

struct Place {
    unsigned row, column;
};

// Of element e (0 or 1) in a lane's register of a matrix that ldmatrix or stmatrix moves.
inline Place in_matrix(unsigned lane, unsigned e, bool transposed) {
    const unsigned of_group = lane / 4, in_group = lane % 4 * 2 + e;
    return transposed ? Place{in_group, of_group} : Place{of_group, in_group};
}

}  // namespace fm3::ptx
