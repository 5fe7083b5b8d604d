// In the place of csrc/sm90/ptx/sync.cuh: there are registers enough.
#pragma once

namespace fm3::ptx {

inline device::Meeting named[2][16];  // of each block of a cluster

inline void named_sync(int id, int threads) {
    device::Meeting& meeting = named[device::rank()][id];
    const unsigned generation = meeting.generation;
    if (++meeting.arrived == threads) meeting = {0, generation + 1};
    device::wait_until([&] { return meeting.generation != generation; });
}

template <int kRegisters>
void registers_up() {}

template <int kRegisters>
void registers_down() {}

}  // namespace fm3::ptx
