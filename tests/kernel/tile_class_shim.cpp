// csrc/common/tile_class.h behind a C function, compiled by plain g++ for the test beside this file.
#include "tile_class.h"

// Vectors int32 [columns] with absent ones given as their neutral values; classes int32 [row tiles * column tiles].
extern "C" void classify_all(
    const int* lts, const int* lte, const int* uts, const int* ute, int rows, int columns, int tile_q, int tile_k, int causal,
    int* classes) {
    const int row_tiles = (rows + tile_q - 1) / tile_q, column_tiles = (columns + tile_k - 1) / tile_k;
    for (int c = 0; c < column_tiles; ++c) {
        const int c0 = c * tile_k, c1 = c0 + tile_k < columns ? c0 + tile_k : columns;
        fm3::BlockBounds b{rows, 0, rows, 0, rows, 0, rows, 0};
        for (int j = c0; j < c1; ++j) {
            const fm3::Interval lower = fm3::clipped(lts[j], lte[j], rows), upper = fm3::clipped(uts[j], ute[j], rows);
            const int values[4] = {lower.start, lower.end, upper.start, upper.end};
            int* bounds[8] = {&b.lts_min, &b.lts_max, &b.lte_min, &b.lte_max, &b.uts_min, &b.uts_max, &b.ute_min, &b.ute_max};
            for (int i = 0; i < 4; ++i) {
                if (values[i] < *bounds[2 * i]) *bounds[2 * i] = values[i];
                if (values[i] > *bounds[2 * i + 1]) *bounds[2 * i + 1] = values[i];
            }
        }
        for (int r = 0; r < row_tiles; ++r) {
            const int r0 = r * tile_q, r1 = r0 + tile_q < rows ? r0 + tile_q : rows;
            classes[r * column_tiles + c] = fm3::classify(b, r0, r1, c0, c1, causal != 0, columns - rows);
        }
    }
}
