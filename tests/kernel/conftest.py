"""What tests of the kernels share."""

from __future__ import annotations

import pytest

from fm3_kernel import hopper, hopper_forward


@pytest.fixture(params=["alone", "pairs", "either"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the Hopper forward kernel that load for themselves, for each other, or as the mask has it, whatever the sizes
    would choose."""

    def sharing(plan: object, mask: hopper.MaskTensors) -> int:
        if request.param == "alone":
            return hopper_forward.ALONE
        return hopper_forward.EITHER if request.param == "either" and mask.lts is not None else hopper_forward.PAIRS

    monkeypatch.setattr(hopper_forward, "_sharing", sharing)
