// Iterative pairwise optimal exchange: context_parallel/pairwise.py.
#include <limits>

#include "slots.h"

namespace fm3 {
namespace {

bool best_exchange(Slots& slots, int heaviest) {
    const auto has_empty = slots.with_empty();
    const int64_t now = slots.loads[heaviest];
    int64_t best = now;
    int best_x = -1, best_y = -1;
    for (int x : slots.of(heaviest)) {
        for (int y = 0; y < slots.size(); ++y) {
            if (slots.rank[y] == heaviest) continue;
            const int64_t moved = slots.weights[x] - slots.weights[y];
            const int64_t after = std::max(now - moved, slots.loads[slots.rank[y]] + moved);
            if (after < best && slots.allowed(x, y, has_empty)) best = after, best_x = x, best_y = y;
        }
    }
    if (best_x < 0) return false;
    slots.exchange(best_x, best_y);
    return true;
}

// Ways to halve so many slots: bit i set = slot i in the first half. Slot 0 always is, the rest is the mirror.
const std::vector<uint32_t>& halves(int slots) {
    static thread_local std::vector<uint32_t> found[kSplitExactly + 1];  // plans are made in several threads
    auto& ways = found[slots];
    if (ways.empty()) {
        for (uint32_t bits = 1; bits < 1u << slots; bits += 2) {
            if (2 * __builtin_popcount(bits) == slots) ways.push_back(bits);
        }
    }
    return ways;
}

bool best_split(Slots& slots, int heaviest) {
    const Numbers loads = slots.loads;
    for (int other : sorted_by(slots.ranks, [&](int r) { return loads[r]; })) {
        if (other == heaviest) continue;
        std::vector<int> pair;
        for (int s = 0; s < slots.size(); ++s) {
            if (slots.rank[s] == heaviest || slots.rank[s] == other) pair.push_back(s);
        }
        const int count = int(pair.size());
        if (count > kSplitExactly) continue;
        uint32_t empty = 0;
        for (int i = 0; i < count; ++i) empty |= uint32_t(slots.empty(pair[i])) << i;
        const bool two_empty = __builtin_popcount(empty) == 2;
        // Sums of every subset of the lower and of the upper slots.
        const int low = count / 2, high = count - low;
        Numbers of_low(size_t(1) << low), of_high(size_t(1) << high);
        for (uint32_t bits = 1; bits < of_low.size(); ++bits) {
            of_low[bits] = of_low[bits & (bits - 1)] + slots.weights[pair[__builtin_ctz(bits)]];
        }
        for (uint32_t bits = 1; bits < of_high.size(); ++bits) {
            of_high[bits] = of_high[bits & (bits - 1)] + slots.weights[pair[low + __builtin_ctz(bits)]];
        }
        const int64_t both = loads[heaviest] + loads[other];
        int64_t best = loads[heaviest];
        uint32_t way = 0;
        for (uint32_t bits : halves(count)) {
            const int64_t first = of_low[bits & (of_low.size() - 1)] + of_high[bits >> low], after = std::max(first, both - first);
            if (after < best && !(two_empty && __builtin_popcount(bits & empty) != 1)) best = after, way = bits;
        }
        if (way == 0) continue;
        slots.loads[heaviest] = slots.loads[other] = 0;
        for (int i = 0; i < count; ++i) {
            slots.rank[pair[i]] = way >> i & 1 ? heaviest : other;
            slots.loads[slots.rank[pair[i]]] += slots.weights[pair[i]];
        }
        return true;
    }
    return false;
}

}  // namespace

Ranks balanced(const Numbers& weights, const Ranks& placement, int ranks, int64_t enough) {
    Slots slots(weights, placement, ranks);
    for (int round = 0; round < kRoundsASlot * slots.size(); ++round) {
        const int heaviest = slots.heaviest();
        if (slots.loads[heaviest] <= enough) break;
        if (!(best_exchange(slots, heaviest) || best_split(slots, heaviest))) break;
    }
    return slots.placement();
}

}  // namespace fm3
