// Where the 16-byte units of a tile lie in shared memory.
//
// Rows follow on each other without gaps; within a row the lower three bits of a unit's number are exchanged with those of the
// row (exclusive or). Eight rows at one unit, which is what ldmatrix reads, then lie in eight different groups of banks, and so
// do eight units of one row, which is what a copy writes. For device and host: tests lay tiles out by it.
#pragma once

#include "../common/tile_class.h"

namespace fm3::sm80 {

// First element of a unit of 8 elements of 16 bits, in a tile of kColumns columns, a multiple of 64.
template <int kColumns>
FM3_HOST_DEVICE int place_of_unit(int row, int unit) {
    static_assert(kColumns % 64 == 0);
    return row * kColumns + (unit ^ row % 8) * 8;
}

// Operands of mma are read in blocks of 16 x 16 elements by one ldmatrix of four 8 x 8 matrices, a row address a lane. Rows
// first: the second matrix lies below the first (an A operand as it is stored, a B operand read transposed). Columns first: it
// lies to the right (a B operand as it is stored, an A operand read transposed).
FM3_HOST_DEVICE int row_of_lane_rows_first(int lane) { return lane % 16; }
FM3_HOST_DEVICE int unit_of_lane_rows_first(int lane) { return lane / 16; }
FM3_HOST_DEVICE int row_of_lane_columns_first(int lane) { return lane / 16 * 8 + lane % 8; }
FM3_HOST_DEVICE int unit_of_lane_columns_first(int lane) { return lane / 8 % 2; }

// A block of 16 x 16 further on: from the byte address of a lane's row in the first block of a row of blocks, which is aligned
// like the tile's rows, the same lane's in the block `across` is one exclusive or away; `down` blocks further down is a sum.
FM3_HOST_DEVICE unsigned address_across(unsigned address, int across) { return address ^ unsigned(across * 32); }

}  // namespace fm3::sm80
