// The planner of context parallelism, compiled: the same results as context_parallel/ in NumPy, number for number.
//
// Plain C ABI, host only. Everything is an integer but one quotient of two of them, so that every machine finds the same plan.
#pragma once

#include <cstdint>

extern "C" {

// Column vectors of a mask with as many rows as columns: int32 [heads][seqlen], heads of all batch items one after another; null
// where the mask has none. No block mask.
struct Fm3PlanMask {
    const int32_t *lts, *lte, *uts, *ute;
    int64_t heads;
    int32_t seqlen, causal;
};

// What context_parallel/work.py calls Costs.
struct Fm3PlanCosts {
    int64_t near, far, hidden_eighths;
};

struct Fm3PlanGroup {
    int32_t chunks, units, ranks, ranks_per_node;
    int32_t unit;            // columns
    int32_t units_a_chunk;   // the last chunk may have fewer
    int64_t slack;
};

// needs: uint8 [chunks][units]; full, partial: int64 [chunks][units], summed over heads, 0 where nothing is needed.
void fm3_plan_work(const Fm3PlanMask* mask, int32_t chunk, int32_t unit, uint8_t* needs, int64_t* full, int64_t* partial);

// placement: int64 [chunks], the rank of every chunk. `needs` and `weights` (int64 [chunks], >= 0) as above.
void fm3_plan_balance(
    const Fm3PlanGroup* group, const Fm3PlanCosts* costs, const uint8_t* needs, const int64_t* weights, int64_t* placement);
}
