// In the place of csrc/sm90/ptx/bulk.cuh: bulk copies and additions that happen at some time.
#pragma once

#include "mbarrier.cuh"

namespace fm3::ptx {

constexpr unsigned kNobody = ~0u;

inline void bulk_load(void* to, const void* from, int bytes, Barrier* barrier) {
    if (bytes <= 0 || bytes % 16 != 0 || uintptr_t(from) % 16 != 0 || shared_address(to) % 16 != 0) std::abort();
    device::pending.push_back({kNobody, [=] {
                                   std::memcpy(to, from, bytes);
                                   come(barrier, 0, bytes);
                               }});
}

template <typename Number>
void bulk_add(Number* to, const void* from, int bytes) {
    if (bytes <= 0 || bytes % 16 != 0 || uintptr_t(to) % 16 != 0 || shared_address(from) % 16 != 0) std::abort();
    device::pending.push_back({device::current, [=] {
                                   for (int i = 0; i < bytes / 4; ++i) to[i] += static_cast<const Number*>(from)[i];
                               }});
}

inline void fence_async_proxy_everywhere() {}

// All that this thread has begun has happened.
inline void bulk_wait() {
    const unsigned me = device::current;
    device::wait_until([=] { return std::none_of(device::pending.begin(), device::pending.end(), [=](const auto& x) { return x.owner == me; }); });
}

}  // namespace fm3::ptx
