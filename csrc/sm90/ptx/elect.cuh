// One lane of a warp.
#pragma once

#include <cstdint>

namespace fm3::ptx {

// True in one lane of a warp that is not divided, always the same one. Other than from a comparison with its number the compiler
// knows from this that it is one lane, and issues copies without a loop over lanes.
__device__ __forceinline__ bool elected() {
    uint32_t is;
    asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, one;\n}\n" : "=r"(is));
    return is != 0;
}

}  // namespace fm3::ptx
