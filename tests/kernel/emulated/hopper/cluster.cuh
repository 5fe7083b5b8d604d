// In the place of csrc/sm90/ptx/cluster.cuh: two blocks whose memories lie behind each other.
#pragma once

#include "tma.cuh"

namespace fm3::ptx {

inline int cluster_rank() { return int(device::rank()); }

inline void cluster_sync() {
    const unsigned generation = device::cluster.generation;
    if (++device::cluster.arrived == int(device::threads.size())) device::cluster = {0, generation + 1};
    device::wait_until([=] { return device::cluster.generation != generation; });
}

inline uint32_t distance_to(const void*, int rank) { return uint32_t(rank - cluster_rank()) * device::kMemory; }

template <typename T>
T* moved(T* pointer, uint32_t distance) { return reinterpret_cast<T*>(reinterpret_cast<char*>(pointer) + int32_t(distance)); }

inline void arrive_there(Barrier* barrier, uint32_t distance) {
    if (distance != 0) come(moved(barrier, distance), 1, 0);
}

inline void fence_cluster() {}

inline void send(unsigned* to, unsigned number, Barrier* barrier, uint32_t distance) {
    device::pending.push_back({kNobody, [=] {
                                   *moved(to, distance) = number;
                                   come(moved(barrier, distance), 0, sizeof(number));
                               }});
}

inline void wait_for_cluster(Barrier* barrier, int parity) { wait(barrier, parity); }

// Either block has its bytes at a time of its own.
inline void tma_load_for_both(
    void* to, const CUtensorMap* map, Barrier* barrier, int position, int chunk, int head, int item, uint64_t) {
    for (int rank = 0; rank < 2; ++rank) {
        const uint32_t distance = distance_to(to, rank);
        begin_load(shared_address(to) + distance, map, moved(barrier, distance), position, chunk, head, item);
    }
}

}  // namespace fm3::ptx
