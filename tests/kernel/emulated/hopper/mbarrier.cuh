// In the place of csrc/sm90/ptx/mbarrier.cuh: a barrier of 64 bits, with what it counts open to see.
#pragma once

#include <cstdint>

namespace fm3::ptx {

using Barrier = uint64_t;

struct Counts {
    int32_t bytes;  // that are expected and have not come
    uint16_t missing;
    uint8_t arrivals, phase;
};
static_assert(sizeof(Counts) == sizeof(Barrier));

inline uint32_t shared_address(const void* pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }
inline Counts& counts(Barrier* barrier) { return *reinterpret_cast<Counts*>(barrier); }

inline void barrier_init(Barrier* barrier, int arrivals) { counts(barrier) = {0, uint16_t(arrivals), uint8_t(arrivals), 0}; }
inline void fence_barrier_init() {}

// Fewer arrivals or bytes are missing than before.
inline void come(Barrier* barrier, int arrivals, int bytes) {
    Counts& x = counts(barrier);
    if (arrivals > x.missing) std::abort();
    x.missing -= arrivals, x.bytes -= bytes;
    if (x.missing == 0 && x.bytes == 0) x.missing = x.arrivals, x.phase ^= 1;
}

inline void arrive(Barrier* barrier) { come(barrier, 1, 0); }
inline void arrive_expecting(Barrier* barrier, int bytes) { come(barrier, 1, -bytes); }
inline bool has_ended(Barrier* barrier, int parity) { return counts(barrier).phase != parity; }
inline void wait(Barrier* barrier, int parity) {
    if (parity != 0 && parity != 1) std::abort();
    device::wait_until([=] { return has_ended(barrier, parity); });
}

template <int kStages>
struct Ring {
    int stage = 0;
    int parity = 0;

    void advance() {
        stage = (stage + 1) % kStages;
        if (stage == 0) parity ^= 1;
    }
};

}  // namespace fm3::ptx
