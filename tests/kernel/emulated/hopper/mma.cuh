// In the place of csrc/sm90/ptx/mma.cuh. What moves matrices is in wgmma.cuh.
#pragma once

#include "product.cuh"
#include "wgmma.cuh"
