// csrc/sm80/swizzle.h behind C functions, compiled by plain g++ for the test beside this file.
#include "swizzle.h"

using namespace fm3::sm80;

extern "C" int place(int columns, int row, int unit) {
    return columns == 64 ? place_of_unit<64>(row, unit) : columns == 128 ? place_of_unit<128>(row, unit) : place_of_unit<256>(row, unit);
}

// Row and unit that a lane reads in a block of 16 x 16.
extern "C" int lane_row(int lane, int rows_first) { return rows_first ? row_of_lane_rows_first(lane) : row_of_lane_columns_first(lane); }
extern "C" int lane_unit(int lane, int rows_first) { return rows_first ? unit_of_lane_rows_first(lane) : unit_of_lane_columns_first(lane); }

extern "C" unsigned across(unsigned address, int blocks) { return address_across(address, blocks); }
