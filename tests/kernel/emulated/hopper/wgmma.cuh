// In the place of csrc/sm90/ptx/wgmma.cuh: products of a warpgroup, done at some time between their commit and the wait for them
// (PTX ISA, "wgmma.mma_async"). Stores of matrices, whose instruction has no header of its own, are here as well.
#pragma once

#include "elements.cuh"
#include "tma.cuh"

namespace fm3::ptx {

// The products that a warpgroup has under way, in groups.
struct Products {
    device::Meeting meeting;
    std::vector<std::vector<std::function<void()>>> committed;
    std::vector<std::function<void()>> open;
    int64_t done = 0, groups[128] = {};  // of each thread: how many it has committed
    float* sums[128];
    uint32_t a[128][4];

    void finish(size_t left) {
        while (committed.size() > left) {
            for (const auto& product : committed.front()) product();
            committed.erase(committed.begin());
            ++done;
        }
    }
};

inline std::vector<Products> products(8);  // of all warpgroups of a cluster

inline unsigned in_warpgroup() { return device::current % 128; }
inline Products& mine() { return products[device::current / 128]; }

// Where all threads of the warpgroup meet.
template <typename Last>
void together(Last last) {
    device::me().at_barrier = true;
    device::meet(mine().meeting, 128, last);
    device::me().at_barrier = false;
}

inline void wgmma_fence() {}

inline void wgmma_commit() {
    Products& x = mine();
    ++x.groups[in_warpgroup()];
    together([&] {
        x.committed.push_back(std::move(x.open));
        x.open.clear();
        if (device::chance() % 2 == 0) x.finish(device::chance() % 2);
    });
}

template <int kPending>
void wgmma_wait() {
    Products& x = mine();
    while (x.done < x.groups[in_warpgroup()] - kPending) x.finish(x.committed.size() - 1);
}

template <int kCount>
void hold(float (&)[kCount]) {}

inline uint64_t descriptor(const void* tile, int chunk_bytes) {
    return (shared_address(tile) % device::kMemory >> 4) | uint64_t(chunk_bytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 | 1ull << 62;
}

enum class Major : int { kK = 0, kMN = 1 };

// Element (i, k) of an operand in the 128-byte swizzle, i along M or N, in the memory of a block.
template <typename T>
float element(const unsigned char* memory, uint64_t descriptor, Major major, int i, int k) {
    const uint32_t start = descriptor % (1 << 14) << 4, chunk = (descriptor >> 16) % (1 << 14) << 4, eight_rows = (descriptor >> 32) % (1 << 14) << 4;
    const uint32_t along_k = start + i / 8 * eight_rows + i % 8 * 128 + 2 * k;
    const uint32_t along_i = start + i / 64 * chunk + k / 8 * eight_rows + k % 8 * 128 + 2 * (i % 64);
    uint16_t bits;
    std::memcpy(&bits, memory + swizzled(major == Major::kK ? along_k : along_i), 2);
    return number(bits, T{});
}

template <int kN, typename T, Major kMajorB>
struct Wgmma {
    using OfA = std::function<float(int, int)>;

    template <typename MakeA>
    static void begin(float* sums, uint64_t b, int add, MakeA make_a) {
        Products& x = mine();
        x.sums[in_warpgroup()] = sums;
        together([&] {
            const std::vector<float*> to(x.sums, x.sums + 128);
            const unsigned char* memory = device::memory_of_block();
            x.open.push_back([=, of_a = OfA(make_a(x))] {
                std::vector<float> left(64 * 16), right(kN * 16);
                for (int i = 0; i < 64 * 16; ++i) left[i] = of_a(i / 16, i % 16);
                for (int i = 0; i < kN * 16; ++i) right[i] = element<T>(memory, b, kMajorB, i / 16, i % 16);
                for (int thread = 0; thread < 128; ++thread) {
                    for (int r = 0; r < kN / 2; ++r) {
                        const float* row = &left[16 * (thread / 32 * 16 + thread % 32 / 4 + r / 2 % 2 * 8)];
                        const float* column = &right[16 * (r / 4 * 8 + thread % 4 * 2 + r % 2)];
                        float sum = add ? to[thread][r] : 0.f;
                        for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
                        to[thread][r] = sum;
                    }
                }
            });
        });
    }

    template <Major kMajorA = Major::kK>
    static void shared(float (&sums)[kN / 2], uint64_t a, uint64_t b, int add) {
        const unsigned char* memory = device::memory_of_block();
        begin(sums, b, add, [=](const Products&) { return [=](int i, int k) { return element<T>(memory, a, kMajorA, i, k); }; });
    }

    static void registers(float (&sums)[kN / 2], const uint32_t (&a)[4], uint64_t b, int add) {
        std::memcpy(mine().a[in_warpgroup()], a, sizeof(a));
        begin(sums, b, add, [](const Products& x) {
            std::vector<uint32_t> of_a(&x.a[0][0], &x.a[0][0] + 512);
            return [=](int i, int k) {
                const int thread = i / 16 * 32 + i % 8 * 4 + k % 8 / 2;
                return number(uint16_t(of_a[4 * thread + i / 8 % 2 + k / 8 * 2] >> 16 * (k % 2)), T{});
            };
        });
    }
};

template <typename T>
float2 unpacked(uint32_t x, T) {
    return {number(uint16_t(x), T{}), number(uint16_t(x >> 16), T{})};
}

// Row i of matrix m lies at the address of lane 8m + i.
inline void store_matrices(const void* row, const uint32_t (&x)[4], bool transposed) {
    const uint64_t* rows = device::gathered(row);
    const unsigned lane = device::current % 32;
    for (unsigned m = 0; m < 4; ++m) {
        for (unsigned e = 0; e < 2; ++e) {
            const Place at = in_matrix(lane, e, transposed);
            auto* to = const_cast<uint16_t*>(static_cast<const uint16_t*>(device::of_lane<const void*>(rows, 8 * m + at.row)));
            to[at.column] = uint16_t(x[m] >> 16 * e);
        }
    }
}

inline void load_matrices(uint32_t (&x)[4], const void* row) {
    const uint64_t* rows = device::gathered(row);
    const unsigned lane = device::current % 32;
    for (unsigned m = 0; m < 4; ++m) x[m] = static_cast<const uint32_t*>(device::of_lane<const void*>(rows, 8 * m + lane / 4))[lane % 4];
    __syncwarp();  // everybody has read
}

}  // namespace fm3::ptx
