// The product of a warp as csrc/sm90/ptx/mma.cuh has it: what the instruction is documented to do (PTX ISA, "mma.m16n8k16").
#pragma once

#include "elements.cuh"
#include "mbarrier.cuh"

namespace fm3::ptx {

template <typename T>
void mma(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T) {
    device::Warp& warp = device::my_warp();
    auto& given = warp.operands[warp.meeting.generation % 2];
    const uint32_t b[2] = {b0, b1};
    const void** mine = given[device::current % 32];
    mine[0] = d, mine[1] = a, mine[2] = b;
    device::meet(warp.meeting, 32, [&] {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; ++lane) {
            const auto* of_a = static_cast<const uint32_t*>(given[lane][1]);
            const auto* of_b = static_cast<const uint32_t*>(given[lane][2]);
            const int group = lane / 4, in_group = lane % 4;
            for (int e = 0; e < 2; ++e) {
                for (int i = 0; i < 4; ++i) left[group + i % 2 * 8][in_group * 2 + e + i / 2 * 8] = number(uint16_t(of_a[i] >> 16 * e), T{});
                for (int i = 0; i < 2; ++i) right[in_group * 2 + e + i * 8][group] = number(uint16_t(of_b[i] >> 16 * e), T{});
            }
        }
        for (int lane = 0; lane < 32; ++lane) {
            auto* out = static_cast<float*>(const_cast<void*>(given[lane][0]));
            for (int i = 0; i < 4; ++i) {
                for (int k = 0; k < 16; ++k) out[i] += left[lane / 4 + i / 2 * 8][k] * right[k][lane % 4 * 2 + i % 2];
            }
        }
    });
}

}  // namespace fm3::ptx
