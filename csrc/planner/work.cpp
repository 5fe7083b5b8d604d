// Tiles, classes and needs of chunks of rows by units of columns: context_parallel/needs.py and work.py.
//
// One pass over the columns for their minima and maxima. A tile of 128 columns has at most three runs of skipped row tiles and at
// most four of full ones; a column covers at most two runs of chunks, which are the same for all columns of most tiles. Runs are
// entered into difference arrays, so nothing is done a pair at a time.
#include <algorithm>
#include <vector>

#include "../common/tile_class.h"
#include "planner.h"

namespace fm3 {
namespace {

constexpr int kBlock = 128;

// Counts of row tiles a chunk, entered by runs.
class Counts {
  public:
    Counts(int chunks, int tiles_a_chunk) : each_(tiles_a_chunk), whole_(chunks + 1), edges_(chunks) {}

    void add(int begin, int end) {
        if (begin >= end) return;
        const int first = begin / each_, last = (end - 1) / each_;
        if (first == last) {
            edges_[first] += end - begin;
            return;
        }
        edges_[first] += (first + 1) * each_ - begin;
        edges_[last] += end - last * each_;
        ++whole_[first + 1];
        --whole_[last];
    }

    // Adds the counts of all chunks, and forgets them.
    void take(int* to) {
        int whole = 0;
        for (size_t chunk = 0; chunk < edges_.size(); ++chunk) {
            whole += whole_[chunk];
            to[chunk] += whole * each_ + edges_[chunk];
        }
        std::fill(whole_.begin(), whole_.end(), 0);
        std::fill(edges_.begin(), edges_.end(), 0);
    }

  private:
    int each_;
    std::vector<int> whole_, edges_;
};

struct Run {
    int begin, end;
};

// Row tiles of one tile of columns, all [0, tiles): the full ones, and those that are not skipped. See masks/tiles.py.
void enter_tiles(const BlockBounds& b, int rows, int c0, int c1, bool causal, Counts& full, Counts& live) {
    const int tiles = (rows + kBlock - 1) / kBlock;
    const auto first_from = [&](int64_t row) { return int(std::clamp<int64_t>((row + kBlock - 1) / kBlock, 0, tiles)); };
    const auto up_to = [&](int row) { return row >= rows ? tiles : row / kBlock; };
    const int above = causal ? up_to(c0) : 0, below = causal ? first_from(c1 - 1) : 0;
    const int lower_clear = up_to(b.lts_min), lower_past = first_from(b.lte_max);
    const int upper_clear = up_to(b.uts_min), upper_past = first_from(b.ute_max);
    for (const Run& lower : {Run{0, std::min(lower_clear, lower_past)}, Run{lower_past, tiles}}) {
        for (const Run& upper : {Run{0, std::min(upper_clear, upper_past)}, Run{upper_past, tiles}}) {
            full.add(std::max({lower.begin, upper.begin, below}), std::min({lower.end, upper.end, tiles}));
        }
    }
    Run skipped[3] = {{0, above}, {first_from(b.lts_max), up_to(b.lte_min)}, {first_from(b.uts_max), up_to(b.ute_min)}};
    std::sort(skipped, skipped + 3, [](const Run& x, const Run& y) { return x.begin < y.begin; });
    int at = 0;
    for (const Run& run : skipped) {
        if (run.begin >= run.end) continue;
        live.add(at, run.begin);
        at = std::max(at, run.end);
    }
    live.add(at, tiles);
}

// Minimum and maximum of a start and an end over columns; absent vectors are constants.
struct Extent {
    int start_min, start_max, end_min, end_max;
};

// Without a branch in its loop, so that it becomes vector instructions.
template <bool kStarts, bool kEnds>
Extent extent(const int32_t* starts, const int32_t* ends, int start, int end, int count, int rows) {
    int start_min = rows, start_max = 0, end_min = rows, end_max = 0;
    for (int i = 0; i < count; ++i) {
        const int s = std::min(std::max(kStarts ? starts[i] : start, 0), rows), e = std::min(std::max(kEnds ? ends[i] : end, 0), rows);
        const int from = s < e ? s : rows, to = s < e ? e : 0;
        start_min = std::min(start_min, from), start_max = std::max(start_max, from);
        end_min = std::min(end_min, to), end_max = std::max(end_max, to);
    }
    return {start_min, start_max, end_min, end_max};
}

Extent extent_of(const int32_t* starts, const int32_t* ends, int start, int end, int count, int rows) {
    const auto of = starts == nullptr ? extent<false, true> : ends == nullptr ? extent<true, false> : extent<true, true>;
    return of(starts, ends, start, end, count, rows);
}

// The mask on the grid, some units at a time.
class Pass {
  public:
    Pass(const Fm3PlanMask& mask, int chunk, int unit)
        : mask_(mask),
          chunk_(chunk),
          unit_(unit),
          rows_(mask.seqlen),
          chunks_((rows_ + chunk - 1) / chunk),
          units_((rows_ + unit - 1) / unit),
          covered_(chunks_ + 1),
          full_(chunks_, chunk / kBlock),
          live_(chunks_, chunk / kBlock) {}

    void run(uint8_t* needs, int64_t* full, int64_t* partial) {
        constexpr int kTogether = 32;  // so many columns of the results are written row by row
        std::vector<uint8_t> needed(size_t(kTogether) * chunks_);
        std::vector<int> whole(needed.size()), live(needed.size());
        for (int first = 0; first < units_; first += kTogether) {
            const int count = std::min(kTogether, units_ - first);
            std::fill(needed.begin(), needed.end(), 0);
            std::fill(whole.begin(), whole.end(), 0);
            std::fill(live.begin(), live.end(), 0);
            for (int64_t head = 0; head < mask_.heads; ++head) {
                for (int i = 0; i < count; ++i) {
                    const size_t at = size_t(i) * chunks_;
                    add_unit(head, first + i, needed.data() + at, whole.data() + at, live.data() + at);
                }
            }
            for (int c = 0; c < chunks_; ++c) {
                const int64_t to = int64_t(c) * units_ + first;
                for (int i = 0; i < count; ++i) {
                    const size_t from = size_t(i) * chunks_ + c;
                    needs[to + i] = needed[from];
                    full[to + i] = needed[from] ? whole[from] : 0;
                    partial[to + i] = needed[from] ? live[from] - whole[from] : 0;
                }
            }
        }
    }

  private:
    // A unit of a head: numbers of every chunk.
    void add_unit(int64_t head, int unit, uint8_t* needs, int* full, int* live) {
        const auto of = [&](const int32_t* vector) { return vector == nullptr ? nullptr : vector + head * rows_; };
        lts_ = of(mask_.lts), lte_ = of(mask_.lte), uts_ = of(mask_.uts), ute_ = of(mask_.ute);
        const int begin = unit * unit_, end = std::min(rows_, begin + unit_);
        for (int c0 = begin; c0 < end; c0 += kBlock) tile(c0, std::min(end, c0 + kBlock));
        full_.take(full);
        live_.take(live);
        int covered = 0;
        for (int c = 0; c < chunks_; ++c) {
            covered += covered_[c];
            needs[c] |= covered < end - begin;
        }
        std::fill(covered_.begin(), covered_.end(), 0);
    }

    void tile(int c0, int c1) {
        const Extent none{rows_, rows_, 0, 0};
        const auto from = [&](const int32_t* vector) { return vector == nullptr ? nullptr : vector + c0; };
        const Extent lower = lts_ == nullptr ? none : extent_of(from(lts_), from(lte_), 0, rows_, c1 - c0, rows_);
        Extent upper = ute_ == nullptr ? none : extent_of(from(uts_), from(ute_), 0, 0, c1 - c0, rows_);
        const BlockBounds b{lower.start_min, lower.start_max, lower.end_min, lower.end_max,
                            upper.start_min, upper.start_max, upper.end_min, upper.end_max};
        enter_tiles(b, rows_, c0, c1, mask_.causal != 0, full_, live_);
        if (mask_.causal) upper = c0 == 0 ? Extent{0, rows_, 0, c1 - 1} : Extent{0, 0, c0, c1 - 1};
        // Without a run, or a gap between the two whatever the column, they do not become one.
        const bool apart = lower.start_min == rows_ || upper.start_min == rows_ || lower.start_min > upper.end_max || upper.start_min > lower.end_max;
        if (apart && alike(lower) && alike(upper)) {
            cover_run({lower.start_min, lower.end_min}, c1 - c0);
            cover_run({upper.start_min, upper.end_min}, c1 - c0);
        } else {
            for (int column = c0; column < c1; ++column) cover(column);
        }
    }

    int first_of(int start) const { return int((int64_t(start) + chunk_ - 1) / chunk_); }
    int last_of(int end) const { return end >= rows_ ? chunks_ : end / chunk_; }
    bool alike(const Extent& x) const { return first_of(x.start_min) == first_of(x.start_max) && last_of(x.end_min) == last_of(x.end_max); }

    // The chunks that lie within what is hidden of a column.
    void cover(int column) {
        Interval a{rows_, 0}, b{rows_, 0};
        if (lts_ != nullptr) a = clipped(lts_[column], lte_ == nullptr ? rows_ : lte_[column], rows_);
        if (ute_ != nullptr) b = clipped(uts_ == nullptr ? 0 : uts_[column], ute_[column], rows_);
        if (mask_.causal) b = clipped(0, column, rows_);
        if (a.start < a.end && b.start < b.end && std::max(a.start, b.start) <= std::min(a.end, b.end)) {
            a = {std::min(a.start, b.start), std::max(a.end, b.end)};
            b = {rows_, 0};
        }
        cover_run(a, 1);
        cover_run(b, 1);
    }
    void cover_run(const Interval& run, int columns) {
        if (run.start >= run.end) return;
        const int first = first_of(run.start), last = last_of(run.end);
        if (first < last) covered_[first] += columns, covered_[last] -= columns;
    }

    const Fm3PlanMask& mask_;
    int chunk_, unit_, rows_, chunks_, units_;
    std::vector<int> covered_;
    Counts full_, live_;
    const int32_t *lts_ = nullptr, *lte_ = nullptr, *uts_ = nullptr, *ute_ = nullptr;
};

}  // namespace
}  // namespace fm3

void fm3_plan_work(const Fm3PlanMask* mask, int32_t chunk, int32_t unit, uint8_t* needs, int64_t* full, int64_t* partial) {
    fm3::Pass(*mask, chunk, unit).run(needs, full, partial);
}
