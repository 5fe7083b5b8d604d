// Chunks and empty slots, every rank with the same number of them: context_parallel/pairwise.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace fm3 {

using Numbers = std::vector<int64_t>;
using Ranks = std::vector<int>;  // of chunks or slots

constexpr int kSplitExactly = 16;  // slots of a pair whose equal splits are all tried
constexpr int kRoundsASlot = 16;   // bound on exchanges

struct Slots {
    int chunks, ranks;
    Ranks rank;
    Numbers weights, loads;
    bool any_empty;

    Slots(const Numbers& of_chunks, const Ranks& placement, int group) : chunks(int(placement.size())), ranks(group), rank(placement), weights(of_chunks) {
        std::vector<int> counts(ranks);
        for (int r : placement) ++counts[r];
        const int most = *std::max_element(counts.begin(), counts.end());
        for (int r = 0; r < ranks; ++r) rank.insert(rank.end(), most - counts[r], r);
        weights.resize(rank.size());
        any_empty = size() > chunks;
        loads.assign(ranks, 0);
        for (int s = 0; s < size(); ++s) loads[rank[s]] += weights[s];
    }

    int size() const { return int(rank.size()); }
    bool empty(int slot) const { return slot >= chunks; }
    Ranks placement() const { return Ranks(rank.begin(), rank.begin() + chunks); }
    int heaviest() const { return int(std::max_element(loads.begin(), loads.end()) - loads.begin()); }

    std::vector<int> of(int r) const {
        std::vector<int> found;
        for (int s = 0; s < size(); ++s) {
            if (rank[s] == r) found.push_back(s);
        }
        return found;
    }

    std::vector<char> with_empty() const {
        std::vector<char> has(ranks);
        for (int s = chunks; s < size(); ++s) has[rank[s]] = 1;
        return has;
    }

    // They have two ranks, and neither gets two empty slots.
    bool allowed(int x, int y, const std::vector<char>& has_empty) const {
        if (rank[x] == rank[y]) return false;
        if (!any_empty) return true;
        return !(empty(y) && !empty(x) && has_empty[rank[x]]) && !(empty(x) && !empty(y) && has_empty[rank[y]]);
    }

    void exchange(int x, int y) {
        loads[rank[x]] += weights[y] - weights[x];
        loads[rank[y]] += weights[x] - weights[y];
        std::swap(rank[x], rank[y]);
    }
};

inline int64_t heaviest_load(const Numbers& weights, const Ranks& placement, int ranks) {
    Numbers loads(ranks);
    for (size_t c = 0; c < placement.size(); ++c) loads[placement[c]] += weights[c];
    return *std::max_element(loads.begin(), loads.end());
}

// Indices by rising key, ties by rising index.
template <typename Key>
std::vector<int> sorted_by(int count, Key key) {
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
    return order;
}

// The placement after exchanges between the heaviest rank and the others, until no rank is heavier than `enough`.
Ranks balanced(const Numbers& weights, const Ranks& placement, int ranks, int64_t enough);

}  // namespace fm3
