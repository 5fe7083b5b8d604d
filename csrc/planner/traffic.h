// Units that groups receive, as sets of bits: context_parallel/traffic.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fm3 {

using std::size_t;

// Rows of bits.
class Bits {
  public:
    Bits(int rows, int bits) : words_((bits + 63) / 64), data_(size_t(rows) * words_) {}
    int words() const { return words_; }
    uint64_t* row(int r) { return data_.data() + size_t(r) * words_; }
    const uint64_t* row(int r) const { return data_.data() + size_t(r) * words_; }
    void set(int r, int bit) { row(r)[bit / 64] |= uint64_t(1) << (bit % 64); }

  private:
    int words_;
    std::vector<uint64_t> data_;
};

// A group receives every unit that one of its slots needs and none of its slots owns.
class Traffic {
  public:
    // needs, owns: a row a slot. group_of_slot: changed by exchange().
    Traffic(const Bits& needs, const Bits& owns, std::vector<int> group_of_slot, int groups);

    std::vector<int> group;
    std::vector<int64_t> received;

    // What the group of x receives once slots x and y have changed groups.
    int64_t after(int x, int y) const { return after_[size_t(x) * group.size() + y]; }

    // Change of all received units by the exchange.
    int64_t change(int x, int y) const {
        if (group[x] == group[y]) return 0;
        return after(x, y) + after(y, x) - received[group[x]] - received[group[y]];
    }

    // The most that any group receives after the exchange.
    int64_t busiest_after(int x, int y) const;

    void exchange(int x, int y);

  private:
    void count(int of_group);

    const Bits *needs_bits_, *owns_bits_;
    Bits idle_;                       // owned and not needed
    struct Words {
        int begin, end;  // outside of these a row is zero
    };
    std::vector<Words> needs_words_, idle_words_;
    std::vector<int64_t> own_needed_, after_;
    std::vector<int> busiest_;        // the three groups that receive most
};

}  // namespace fm3
