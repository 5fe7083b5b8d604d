// In the place of csrc/sm90/ptx/elect.cuh.
#pragma once

namespace fm3::ptx {

inline bool elected() {
    __syncwarp();
    return device::current % 32 == 0;
}

}  // namespace fm3::ptx
