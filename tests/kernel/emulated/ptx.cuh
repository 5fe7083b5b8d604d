// In the place of csrc/sm80/ptx.cuh (PTX ISA, "ldmatrix").
#pragma once

#include "../sm90/ptx/copy.cuh"
#include "../sm90/ptx/mma.cuh"

namespace fm3::ptx {

template <typename Integer>
Integer opaque(Integer x) {
    return x;
}

inline uint32_t lowest_bits(int x) { return x <= 0 ? 0 : x >= 32 ? ~0u : (1u << x) - 1; }

inline void copy16_or_zeros(uint32_t to, const void* from, bool exists) {
    begin_copy(device::shared + to, from, exists ? 16 : 0, exists ? 0 : 16);
}

// Element (i, j) of a matrix: row i lies at the address of lane 8m + i.
inline void load_matrices(uint32_t (&x)[4], uint32_t row, bool transposed) {
    if (row % 16 != 0) std::abort();
    const uint64_t* rows = device::gathered(row);
    const unsigned lane = device::current % 32;
    for (unsigned m = 0; m < 4; ++m) {
        x[m] = 0;
        for (unsigned e = 0; e < 2; ++e) {
            const Place at = in_matrix(lane, e, transposed);
            uint16_t element;
            std::memcpy(&element, device::shared + device::of_lane<uint32_t>(rows, 8 * m + at.row) + 2 * at.column, 2);
            x[m] |= uint32_t(element) << 16 * e;
        }
    }
    device::gathered(0);  // everybody has read: what follows may write there
}

inline void load_block(uint32_t (&x)[4], uint32_t row) { load_matrices(x, row, false); }
inline void load_block_transposed(uint32_t (&x)[4], uint32_t row) { load_matrices(x, row, true); }

}  // namespace fm3::ptx
