#include "traffic.h"

#include "slots.h"

namespace fm3 {

Traffic::Traffic(const Bits& needs, const Bits& owns, std::vector<int> group_of_slot, int groups)
    : group(std::move(group_of_slot)),
      received(groups),
      needs_bits_(&needs),
      owns_bits_(&owns),
      idle_(int(group.size()), needs.words() * 64),
      own_needed_(group.size()),
      after_(group.size() * group.size()) {
    for (int s = 0; s < int(group.size()); ++s) {
        for (int w = 0; w < needs.words(); ++w) {
            idle_.row(s)[w] = owns.row(s)[w] & ~needs.row(s)[w];
            own_needed_[s] += __builtin_popcountll(owns.row(s)[w] & needs.row(s)[w]);
        }
    }
    const auto words_of = [&](const Bits& bits, int s) {
        Words words{0, bits.words()};
        while (words.end > words.begin && bits.row(s)[words.end - 1] == 0) --words.end;
        while (words.begin < words.end && bits.row(s)[words.begin] == 0) ++words.begin;
        return words;
    };
    for (int s = 0; s < int(group.size()); ++s) {
        needs_words_.push_back(words_of(needs, s));
        idle_words_.push_back(words_of(idle_, s));
    }
    for (int g = 0; g < groups; ++g) count(g);
    busiest_ = sorted_by(groups, [&](int g) { return -received[g]; });
}

void Traffic::count(int of_group) {
    const int slots = int(group.size()), words = needs_bits_->words();
    std::vector<uint64_t> once(words), twice(words), owned(words), rest(words), open(words), unmet(words);
    // Needed by one slot of the group, by more than one.
    for (int s = 0; s < slots; ++s) {
        if (group[s] != of_group) continue;
        for (int w = 0; w < words; ++w) {
            twice[w] |= once[w] & needs_bits_->row(s)[w];
            once[w] |= needs_bits_->row(s)[w];
            owned[w] |= owns_bits_->row(s)[w];
        }
    }
    received[of_group] = 0;
    for (int w = 0; w < words; ++w) received[of_group] += __builtin_popcountll(once[w] & ~owned[w]);
    for (int x = 0; x < slots; ++x) {
        if (group[x] != of_group) continue;
        // Without x, which leaves; every unit has one owner.
        int64_t fixed = 0;
        for (int w = 0; w < words; ++w) {
            rest[w] = (once[w] & ~needs_bits_->row(x)[w]) | twice[w];
            open[w] = ~(owned[w] & ~owns_bits_->row(x)[w]);
            fixed += __builtin_popcountll(rest[w] & open[w]);
            unmet[w] = ~rest[w] & open[w];
        }
        int64_t* after = after_.data() + size_t(x) * slots;
        for (int y = 0; y < slots; ++y) {
            const uint64_t *needs = needs_bits_->row(y), *idle = idle_.row(y);
            int64_t sum = fixed - own_needed_[y];
            for (int w = needs_words_[y].begin; w < needs_words_[y].end; ++w) sum += __builtin_popcountll(unmet[w] & needs[w]);
            for (int w = idle_words_[y].begin; w < idle_words_[y].end; ++w) sum -= __builtin_popcountll(rest[w] & idle[w]);
            after[y] = sum;
        }
    }
}

int64_t Traffic::busiest_after(int x, int y) const {
    // Of the groups that the exchange does not touch the busiest is one of the three busiest.
    int64_t most = std::max(after(x, y), after(y, x));
    for (size_t i = 0; i < busiest_.size() && i < 3; ++i) {
        const int g = busiest_[i];
        if (g == group[x] || g == group[y]) continue;
        return std::max(most, received[g]);
    }
    return most;
}

void Traffic::exchange(int x, int y) {
    if (group[x] == group[y]) return;
    std::swap(group[x], group[y]);
    count(group[x]);
    count(group[y]);
    busiest_ = sorted_by(int(received.size()), [&](int g) { return -received[g]; });
}

}  // namespace fm3
