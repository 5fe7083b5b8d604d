// A block of CUDA threads on a CPU: every thread a fiber, every collective a place where fibers meet.
//
// Just enough for csrc/sm80 and csrc/sm90, whose own code runs on it; only the headers with instructions have others in their place,
// beside this one. Warps advance in random order, each as far as it gets alone, and copies land as early or as late as they may:
// what is missing a barrier or a wait comes out wrong. The blocks of a cluster run beside each other, all others one after the
// other. Included before everything else.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using std::max;
using std::min;

namespace fm3::sm80 {

constexpr unsigned kMemory = 1 << 18;  // of a block
alignas(1024) unsigned char memory[2 * kMemory];  // what kernels declare as shared memory, of both blocks of a cluster

}  // namespace fm3::sm80

namespace fm3 {

using sm80::memory;

}  // namespace fm3

namespace device {

struct Index {
    unsigned x;
};

struct Copy {
    void* to;
    const void* from;
    int bytes, zeros;

    void land() const {
        if (bytes > 0) std::memcpy(to, from, bytes);
        std::memset(static_cast<char*>(to) + bytes, 0, zeros);
    }
};

// What a copy engine does at some time; `owner` is who may wait for it, or nobody.
struct Pending {
    unsigned owner;
    std::function<void()> land;
};

// Where `count` threads meet; the last one to come may do something for all.
struct Meeting {
    int arrived = 0;
    unsigned generation = 0;
};

struct Thread {
    ucontext_t start;
    jmp_buf state;
    std::unique_ptr<char[]> stack;
    bool begun = false, ended = false, at_barrier = false;  // or at anything else that others must come to
    std::vector<std::vector<Copy>> groups;  // committed
    std::vector<Copy> group;
};

struct Warp {
    Meeting meeting;
    uint64_t values[2][32];
    const void* operands[2][32][3];
};

inline std::vector<Thread> threads;
inline std::vector<Warp> warps;
inline Meeting blocks[2], cluster;
inline std::vector<Pending> pending;
inline unsigned current, first_block, in_block, grid;  // this thread, its cluster's first block, threads of a block, all blocks
inline bool late;  // copies land when they are waited for, or long after they are begun
inline int slow = -1;  // a warp that falls asleep now and then
inline jmp_buf scheduler;
inline std::function<void()> kernel;
inline std::mt19937 chance;
using fm3::sm80::kMemory;
inline unsigned char (&shared)[2 * kMemory] = fm3::sm80::memory;

inline Thread& me() { return threads[current]; }
inline unsigned rank() { return current / in_block; }  // of the block in its cluster
inline unsigned char* memory_of_block() { return shared + rank() * kMemory; }
inline Warp& my_warp() { return warps[current / 32]; }

inline void yield() {
    if (_setjmp(me().state) == 0) _longjmp(scheduler, 1);
}

// Until something is so that others bring about.
template <typename Condition>
void wait_until(Condition condition) {
    me().at_barrier = true;
    while (!condition()) yield();
    me().at_barrier = false;
}

template <typename Last>
void meet(Meeting& meeting, int count, Last last) {
    const unsigned generation = meeting.generation;
    if (++meeting.arrived == count) {
        last();
        meeting.arrived = 0;
        ++meeting.generation;
    } else {
        while (meeting.generation == generation) yield();
    }
}

// What every lane has given, by lane. Two sets in turn: nobody is two collectives ahead of anybody.
template <typename T>
const uint64_t* gathered(T value) {
    Warp& warp = my_warp();
    uint64_t* values = warp.values[warp.meeting.generation % 2];
    static_assert(sizeof(T) <= 8);
    std::memcpy(values + current % 32, &value, sizeof(T));
    meet(warp.meeting, 32, [] {});
    return values;
}

template <typename T>
T of_lane(const uint64_t* values, unsigned lane) {
    T value;
    std::memcpy(&value, values + lane, sizeof(T));
    return value;
}

inline void begin_thread() {
    kernel();
    me().ended = true;
    _longjmp(scheduler, 1);
}

inline void resume(unsigned thread) {
    current = thread;
    if (_setjmp(scheduler) != 0) return;
    if (!me().begun) {
        me().begun = true;
        setcontext(&me().start);
    }
    _longjmp(me().state, 1);
}

// Runs a kernel of one-dimensional blocks, one cluster after the other. False: it has not ended in any reasonable time.
inline bool launch(unsigned count_of_blocks, unsigned count_of_threads, const std::function<void()>& body, unsigned in_cluster = 1) {
    kernel = body, grid = count_of_blocks, in_block = count_of_threads;
    for (first_block = 0; first_block < grid; first_block += in_cluster) {
        const unsigned count = in_cluster * in_block;
        threads = std::vector<Thread>(count);
        warps = std::vector<Warp>(count / 32);
        blocks[0] = blocks[1] = cluster = {};
        std::memset(shared, 0xFF, sizeof(shared));  // NaN
        for (Thread& thread : threads) {
            constexpr size_t kStack = 1 << 16;
            thread.stack.reset(new char[kStack]);
            getcontext(&thread.start);
            thread.start.uc_stack.ss_sp = thread.stack.get();
            thread.start.uc_stack.ss_size = kStack;
            thread.start.uc_link = nullptr;
            makecontext(&thread.start, begin_thread, 0);
        }
        std::vector<unsigned> running(count / 32);
        for (unsigned i = 0; i < running.size(); ++i) running[i] = i;
        int asleep_until = 0;
        for (int turns = 0; !running.empty(); ++turns) {
            if (turns == (slow < 0 ? 2000000 : 10000000)) return false;  // for one cluster
            while (!pending.empty() && chance() % (late ? 100 : 8) == 0) {
                const size_t next = chance() % pending.size();
                const auto land = pending[next].land;
                pending.erase(pending.begin() + next);
                land();
            }
            const size_t at = chance() % running.size();
            const unsigned warp = running[at];
            if (int(warp) == slow) {
                if (turns < asleep_until) continue;
                if (chance() % 20 == 0) {
                    asleep_until = turns + 4000;
                    continue;
                }
            }
            // As far as it gets: until all of its threads wait for others, or have ended. Not for ever: one may wait for others, and
            // the rest of the warp for that one.
            bool waits = false;
            for (unsigned left = 1 + chance() % 64; !waits && left > 0; --left) {
                waits = true;
                for (unsigned lane = 0; lane < 32; ++lane) {
                    Thread& thread = threads[warp * 32 + lane];
                    if (thread.ended) continue;
                    resume(warp * 32 + lane);
                    waits &= thread.ended || thread.at_barrier;
                }
            }
            bool ended = true;
            for (unsigned lane = 0; lane < 32; ++lane) ended &= threads[warp * 32 + lane].ended;
            if (ended) running.erase(running.begin() + at);
        }
    }
    return true;
}

}  // namespace device

#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#undef __global__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define __global__ static
#define threadIdx (device::Index{device::current % device::in_block})
#define blockIdx (device::Index{device::first_block + device::rank()})
#define blockDim (device::Index{device::in_block})
#define gridDim (device::Index{device::grid})

inline void __syncthreads() {
    device::me().at_barrier = true;
    device::meet(device::blocks[device::rank()], int(device::in_block), [] {});
    device::me().at_barrier = false;
}

inline void __syncwarp() {
    device::gathered(0);
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
    const unsigned lane = device::current % 32;
    return device::of_lane<T>(device::gathered(value), lane ^ lanes);
}

template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned lanes) {
    const unsigned lane = device::current % 32;
    return device::of_lane<T>(device::gathered(value), lane < lanes ? lane : lane - lanes);
}

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
    return device::of_lane<T>(device::gathered(value), unsigned(lane) % 32);
}

inline unsigned __ballot_sync(unsigned, bool value) {
    const uint64_t* values = device::gathered(value);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= unsigned(device::of_lane<bool>(values, lane)) << lane;
    return bits;
}

inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) == ~0u; }

inline unsigned __reduce_or_sync(unsigned, unsigned value) {
    const uint64_t* values = device::gathered(value);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= device::of_lane<unsigned>(values, lane);
    return bits;
}

template <typename T>
T __ldg(const T* x) { return *x; }
template <typename T>
T __ldcg(const T* x) { return *x; }
template <typename T>
T __ldcs(const T* x) { return *x; }

template <typename T>
T atomicAdd(T* to, T value) {
    const T before = *to;
    *to += value;
    return before;
}

inline unsigned long long atomicOr(unsigned long long* to, unsigned long long bits) {
    const unsigned long long before = *to;
    *to |= bits;
    return before;
}
inline unsigned long long atomicAnd(unsigned long long* to, unsigned long long bits) {
    const unsigned long long before = *to;
    *to &= bits;
    return before;
}

inline void __threadfence() {}
inline void __nanosleep(unsigned) {
    bool seen = false;
    device::wait_until([&] { return std::exchange(seen, true); });
}
template <typename T>
void __stcg(T* to, T value) { *to = value; }

// Bytes of y:x, chosen by the digits of `which`.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t which) {
    const uint64_t from = x | uint64_t(y) << 32;
    uint32_t bytes = 0;
    for (int i = 0; i < 4; ++i) bytes |= uint32_t(from >> 8 * (which >> 4 * i & 7) & 0xFF) << 8 * i;
    return bytes;
}

inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) { return by % 32 ? high << by % 32 | low >> (32 - by % 32) : high; }
inline float __uint_as_float(uint32_t x) { float y; std::memcpy(&y, &x, 4); return y; }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline int __float2int_rn(float x) { return std::isfinite(x) ? int(std::nearbyint(x)) : 0; }
inline float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; std::memcpy(&y, &x, 4); return y; }
inline size_t __cvta_generic_to_shared(const void* pointer) { return size_t(static_cast<const unsigned char*>(pointer) - device::shared); }
