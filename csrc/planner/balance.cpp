// Which rank computes which chunks: context_parallel/placements.py, bounds.py, locality.py and balance.py.
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "planner.h"
#include "slots.h"
#include "traffic.h"

namespace fm3 {
namespace {

// -- placements to start from

Numbers shares(int chunks, int ranks) {
    Numbers each(ranks);
    for (int r = 0; r < ranks; ++r) each[r] = chunks / ranks + (r < chunks % ranks);
    return each;
}

Ranks contiguous(int chunks, int ranks) {
    Ranks placement;
    const Numbers each = shares(chunks, ranks);
    for (int r = 0; r < ranks; ++r) placement.insert(placement.end(), size_t(each[r]), r);
    return placement;
}

Ranks dual_chunk(int chunks, int ranks) {
    Ranks placement;
    const Numbers each = shares(chunks, ranks);
    for (int r = 0; r < ranks; ++r) placement.insert(placement.end(), size_t((each[r] + 1) / 2), r);
    for (int r = ranks - 1; r >= 0; --r) placement.insert(placement.end(), size_t(each[r] / 2), r);
    return placement;
}

Ranks heaviest_first(const Numbers& weights, int ranks) {
    const int chunks = int(weights.size()), least = chunks / ranks;
    int longer = chunks % ranks;
    Ranks placement(chunks);
    Numbers loads(ranks);
    std::vector<int> counts(ranks);
    for (int chunk : sorted_by(chunks, [&](int c) { return -weights[c]; })) {
        int rank = -1;
        for (int r = 0; r < ranks; ++r) {
            const bool open = counts[r] < least || (counts[r] == least && longer > 0);
            if (open && (rank < 0 || loads[r] < loads[rank])) rank = r;
        }
        longer -= counts[rank] == least;
        placement[chunk] = rank;
        loads[rank] += weights[chunk];
        ++counts[rank];
    }
    return placement;
}

// -- what no placement can beat

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t least_load(const Numbers& weights, int ranks) {
    const int chunks = int(weights.size()), share = chunks / ranks;
    Numbers rising = weights, lightest(1);
    std::sort(rising.begin(), rising.end());
    for (int64_t w : rising) lightest.push_back(lightest.back() + w);
    int64_t bound = up(lightest[chunks], ranks);
    const int from = std::min(ranks - 1, chunks), to = std::min(ranks - 1 + share, chunks);
    bound = std::max(bound, lightest[to] - lightest[from]);
    for (int heavy = 1; heavy <= std::min(ranks, chunks); ++heavy) {
        int64_t fewest = std::numeric_limits<int64_t>::max();
        for (int on = std::max(1, int(up(heavy, share + 1))); on <= heavy; ++on) {
            const int64_t besides = lightest[std::max(0, on * share - heavy)];
            fewest = std::min(fewest, up(lightest[chunks] - lightest[chunks - heavy] + besides, on));
        }
        bound = std::max(bound, fewest);
    }
    return bound;
}

// -- exchanges that look at traffic

struct Problem {
    Fm3PlanGroup group;
    Fm3PlanCosts costs;
    Numbers weights;
    Bits needs, owns;  // a row a slot; empty slots have none
    int slots, nodes;
};

// A placement under exchanges, with the loads and the traffic that belong to it.
struct State {
    std::reference_wrapper<const Problem> problem;
    const Problem& of() const { return problem; }
    Slots slots;
    Traffic near;
    std::optional<Traffic> far;
    std::vector<char> has_empty;
    int64_t busiest = 0;

    State(const Problem& of, const Ranks& placement)
        : problem(of), slots(of.weights, placement, of.group.ranks), near(of.needs, of.owns, slots.rank, of.group.ranks) {
        if (of.nodes > 1) {
            Ranks nodes = slots.rank;
            for (int& r : nodes) r /= of.group.ranks_per_node;
            far.emplace(of.needs, of.owns, nodes, of.nodes);
        }
        refresh();
    }

    void refresh() {
        busiest = *std::max_element(near.received.begin(), near.received.end());
        has_empty = slots.with_empty();
    }

    // Of the cost of traffic: the sum over the ranks plus half the number of ranks times the busiest rank; what enters nodes at
    // its own price.
    int64_t change(int x, int y) const {
        const int64_t change = 2 * near.change(x, y) + int64_t(slots.ranks) * (near.busiest_after(x, y) - busiest);
        return far ? of().costs.near * change + 2 * of().costs.far * far->change(x, y) : change;
    }

    void exchange(int x, int y) {
        slots.exchange(x, y);
        near.exchange(x, y);
        if (far) far->exchange(x, y);
        refresh();
    }
};

void balance_nearby(State& state, int64_t limit) {
    Slots& slots = state.slots;
    for (int round = 0; round < kRoundsASlot * slots.size(); ++round) {
        const int heaviest = slots.heaviest();
        const int64_t now = slots.loads[heaviest];
        if (now <= limit) break;
        const std::vector<int> mine = slots.of(heaviest);
        Numbers changes(mine.size() * slots.size());
        Numbers reliefs(changes.size());
        int64_t least = std::numeric_limits<int64_t>::max();
        bool helps = false;
        size_t i = 0;
        for (int x : mine) {
            for (int y = 0; y < slots.size(); ++y, ++i) {
                changes[i] = state.change(x, y);
                least = std::min(least, changes[i]);
                const int64_t moved = slots.weights[y] - slots.weights[x], other = slots.loads[slots.rank[y]];
                const int64_t here = now + moved, there = other - moved;
                const auto over = [&](int64_t load) { return std::max<int64_t>(0, load - limit); };
                const int64_t relief = over(now) + over(other) - over(here) - over(there);
                if (relief > 0 && std::max(here, there) <= now && slots.allowed(x, y, state.has_empty)) reliefs[i] = relief, helps = true;
            }
        }
        if (!helps) break;
        double best = 0;
        size_t at = 0;
        for (i = 0; i < reliefs.size(); ++i) {
            if (reliefs[i] == 0) continue;
            const double worth = double(reliefs[i]) / double(changes[i] - least + 1);
            if (worth > best) best = worth, at = i;
        }
        state.exchange(mine[at / slots.size()], int(at % slots.size()));
    }
    const Ranks reached = slots.placement(), finished = balanced(state.of().weights, reached, slots.ranks, limit);
    // Empty slots may have changed places; whoever starts from a placement has them in order.
    if (finished != reached || slots.any_empty) state = State(state.of(), finished);
}

// The best exchange of the rank that receives most, or of the next one if none of its exchanges helps.
bool gather_once(State& state, int64_t limit) {
    Slots& slots = state.slots;
    for (int rank : sorted_by(slots.ranks, [&](int r) { return -state.near.received[r]; })) {
        int64_t best = 0;
        int best_x = -1, best_y = -1;
        for (int x : slots.of(rank)) {
            for (int y = 0; y < slots.size(); ++y) {
                if (slots.rank[y] == rank) continue;
                const int64_t moved = slots.weights[y] - slots.weights[x];
                if (slots.loads[rank] + moved > limit || slots.loads[slots.rank[y]] - moved > limit) continue;
                if (!slots.allowed(x, y, state.has_empty)) continue;
                const int64_t change = state.change(x, y);
                if (change < best) best = change, best_x = x, best_y = y;
            }
        }
        if (best_x >= 0) {
            state.exchange(best_x, best_y);
            return true;
        }
    }
    return false;
}

Ranks lower_traffic(State state, int64_t limit) {
    for (int round = 0; round < kRoundsASlot * state.slots.size(); ++round) {
        if (!gather_once(state, limit)) break;
    }
    return state.slots.placement();
}

// -- the choice

struct Judged {
    int64_t time, received, heaviest;
    bool operator<(const Judged& other) const {
        return std::tie(time, received, heaviest) < std::tie(other.time, other.received, other.heaviest);
    }
};

Numbers received_by(const Problem& problem, const Ranks& group_of_chunk, int groups) {
    const int words = problem.needs.words();
    Bits needs(groups, words * 64), owns(groups, words * 64);
    for (int c = 0; c < problem.group.chunks; ++c) {
        for (int w = 0; w < words; ++w) {
            needs.row(group_of_chunk[c])[w] |= problem.needs.row(c)[w];
            owns.row(group_of_chunk[c])[w] |= problem.owns.row(c)[w];
        }
    }
    Numbers received(groups);
    for (int g = 0; g < groups; ++g) {
        for (int w = 0; w < words; ++w) received[g] += __builtin_popcountll(needs.row(g)[w] & ~owns.row(g)[w]);
    }
    return received;
}

Judged judge(const Problem& problem, const Ranks& placement) {
    const int ranks = problem.group.ranks, a_node = problem.group.ranks_per_node;
    const Fm3PlanCosts& costs = problem.costs;
    const Numbers received = received_by(problem, placement, ranks);
    Ranks node_of = placement;
    for (int& r : node_of) r /= a_node;
    const Numbers entering = received_by(problem, node_of, problem.nodes);
    Numbers loads(ranks);
    for (int c = 0; c < problem.group.chunks; ++c) loads[placement[c]] += problem.weights[c];
    Judged found{0, 0, 0};
    for (int r = 0; r < ranks; ++r) {
        const int64_t unit = problem.group.unit;
        const int64_t transfer = costs.near * unit * received[r] + costs.far * unit * entering[r / a_node] / a_node;
        const int64_t shorter = std::min(loads[r], transfer), longer = std::max(loads[r], transfer);
        found.time = std::max(found.time, longer + shorter - shorter * costs.hidden_eighths / 8);
        found.received += received[r];
        found.heaviest = std::max(found.heaviest, loads[r]);
    }
    return found;
}

Ranks choose(const Problem& problem) {
    const int chunks = problem.group.chunks, ranks = problem.group.ranks;
    const Numbers& weights = problem.weights;
    const Ranks fixed[2] = {contiguous(chunks, ranks), dual_chunk(chunks, ranks)};
    const int64_t enough = least_load(weights, ranks);
    Ranks tight;
    int64_t best = std::numeric_limits<int64_t>::max();
    for (const Ranks& start : {fixed[0], fixed[1], heaviest_first(weights, ranks)}) {
        const Ranks finished = balanced(weights, start, ranks, enough);
        const int64_t load = heaviest_load(weights, finished, ranks);
        if (load < best) best = load, tight = finished;
    }
    const int64_t slack = problem.group.slack;
    int64_t limit = best + best / slack;
    for (const Ranks& start : fixed) limit = std::min(limit, heaviest_load(weights, start, ranks));
    std::vector<Ranks> candidates{tight, lower_traffic(State(problem, tight), best)};
    const std::set<int64_t, std::greater<>> limits{limit, std::min(limit, best + best / (4 * slack))};
    for (const Ranks& start : fixed) {
        State near(problem, start);
        for (int64_t most : limits) {
            balance_nearby(near, most);
            if (near.slots.loads[near.slots.heaviest()] > most) continue;
            candidates.push_back(near.slots.placement());
            candidates.push_back(lower_traffic(near, most));
        }
    }
    size_t taken = 0;
    Judged of_taken = judge(problem, candidates[0]);
    for (size_t i = 1; i < candidates.size(); ++i) {
        const Judged judged = judge(problem, candidates[i]);
        if (judged < of_taken) of_taken = judged, taken = i;
    }
    return candidates[taken];
}

}  // namespace
}  // namespace fm3

void fm3_plan_balance(
    const Fm3PlanGroup* group, const Fm3PlanCosts* costs, const uint8_t* needs, const int64_t* weights, int64_t* placement) {
    using namespace fm3;
    const int chunks = group->chunks, units = group->units, slots = (chunks + group->ranks - 1) / group->ranks * group->ranks;
    Problem problem{*group, *costs, Numbers(weights, weights + chunks), Bits(slots, units), Bits(slots, units), slots, group->ranks / group->ranks_per_node};
    for (int c = 0; c < chunks; ++c) {
        for (int u = 0; u < units; ++u) {
            if (needs[int64_t(c) * units + u]) problem.needs.set(c, u);
        }
    }
    for (int u = 0; u < units; ++u) problem.owns.set(u / group->units_a_chunk, u);
    const Ranks found = choose(problem);
    std::copy(found.begin(), found.end(), placement);
}
