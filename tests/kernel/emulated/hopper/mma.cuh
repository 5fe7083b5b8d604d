// In the place of csrc/sm90/ptx/mma.cuh, of which the backward pass needs what moves matrices: see wgmma.cuh.
#pragma once

#include "wgmma.cuh"
