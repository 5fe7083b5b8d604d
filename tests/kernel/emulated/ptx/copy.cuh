// In the place of csrc/sm90/ptx/copy.cuh: copies that land at once, or when they are waited for.
#pragma once

#include "mbarrier.cuh"

namespace fm3::ptx {

inline void begin_copy(void* to, const void* from, int bytes, int zeros) {
    const device::Copy copy{to, from, bytes, zeros};
    device::late ? device::me().group.push_back(copy) : copy.land();
}

inline void copy16(void* to, const void* from) { begin_copy(to, from, 16, 0); }
inline void copy4(void* to, const void* from) { begin_copy(to, from, 4, 0); }

inline void copy_commit() {
    device::me().groups.push_back(device::me().group);
    device::me().group.clear();
}

template <int kLeft>
void copy_wait() {
    auto& groups = device::me().groups;
    while (groups.size() > kLeft) {
        for (const device::Copy& copy : groups.front()) copy.land();
        groups.erase(groups.begin());
    }
}

}  // namespace fm3::ptx
