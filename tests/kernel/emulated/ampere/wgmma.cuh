// In the place of csrc/sm90/ptx/wgmma.cuh: the conversions alone.
#pragma once

#include "elements.cuh"
#include "mbarrier.cuh"
