// In the place of csrc/sm90/ptx/tma.cuh and of the encoder in csrc/sm90/tensor_map.h: a map says what it was made of, copies happen
// at some time.
#pragma once

#include "../tensor_map.h"
#include "bulk.cuh"

namespace fm3 {

struct EmulatedMap {
    TensorView tensor;
    int box_rows, chunks;
};
static_assert(sizeof(EmulatedMap) <= sizeof(CUtensorMap));

// What `encode` does here.
inline cudaError_t emulated_map(CUtensorMap* map, const TensorView& x, int box_rows, int chunks) {
    const EmulatedMap made{x, box_rows, chunks};
    std::memcpy(map, &made, sizeof(made));
    return cudaSuccess;
}

namespace ptx {

constexpr uint64_t kEvictFirst = 0, kEvictLast = 0;

// 16-byte units of 128 bytes by the number of these 128 bytes.
inline uint32_t swizzled(uint32_t byte) { return byte ^ ((byte >> 7 << 4) & 0x70); }

// A box, element by element: `what` is given its place in shared memory and in the tensor, or null where there is none.
template <typename What>
void for_box(const CUtensorMap* map, uint32_t at, int position, int first_chunk, int head, int item, What what) {
    const EmulatedMap& m = *reinterpret_cast<const EmulatedMap*>(map);
    const TensorView& x = m.tensor;
    for (int i = 0; i < m.chunks * m.box_rows * 64; ++i) {
        const int chunk = i / 64 / m.box_rows, row = i / 64 % m.box_rows;
        const bool exists = position + row >= 0 && position + row < x.rows && head < x.heads && item < x.batch;
        const int64_t element = item * x.batch_stride + (position + row) * x.row_stride + head * x.head_stride + (first_chunk + chunk) * 64 + i % 64;
        auto* tensor = static_cast<uint16_t*>(const_cast<void*>(x.data));
        what(reinterpret_cast<uint16_t*>(device::shared + swizzled(at + 2 * i)), exists ? tensor + element : nullptr);
    }
}

// `at`: address in the memory of all blocks of the cluster.
inline void begin_load(uint32_t at, const CUtensorMap* map, Barrier* barrier, int position, int chunk, int head, int item) {
    if (at % 1024 != 0) std::abort();
    device::pending.push_back({kNobody, [=] {
                                   int bytes = 0;
                                   for_box(map, at, position, chunk, head, item, [&](uint16_t* place, const uint16_t* element) {
                                       *place = element != nullptr ? *element : 0;
                                       bytes += 2;
                                   });
                                   come(barrier, 0, bytes);
                               }});
}

inline void tma_load(void* to, const CUtensorMap* map, Barrier* barrier, int position, int head, int item, uint64_t) {
    begin_load(shared_address(to), map, barrier, position, 0, head, item);
}

inline void prefetch(const CUtensorMap*) {}

inline void tma_store(const CUtensorMap* map, const void* from, int position, int chunk, int head, int item) {
    const uint32_t at = shared_address(from);
    device::pending.push_back({device::current, [=] {
                                   for_box(map, at, position, chunk, head, item, [](const uint16_t* place, uint16_t* element) {
                                       if (element != nullptr) *element = *place;
                                   });
                               }});
}

inline void store_commit() {}
inline void store_wait_read() { bulk_wait(); }
inline void fence_async_proxy() {}

}  // namespace ptx
}  // namespace fm3
