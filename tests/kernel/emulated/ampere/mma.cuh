// In the place of csrc/sm90/ptx/mma.cuh.
#pragma once

#include "product.cuh"
