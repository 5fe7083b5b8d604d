"""The competitors, by name, in the order in which tables show them."""

from __future__ import annotations

from harness.backends.base import Attend, Availability, Backend, MissingBackend
from harness.backends.dense import Dense
from harness.backends.flash_attn_2 import FlashAttn2
from harness.backends.flash_attn_3 import FlashAttn3
from harness.backends.flash_attn_4 import FlashAttn4
from harness.backends.flashmask import FlashMask
from harness.backends.flashmask_3 import FlashMask3
from harness.backends.flex import Flex
from harness.backends.flex_flash import FlexFlash
from harness.backends.flex_tuned import FlexTuned
from harness.backends.fm3 import Fm3
from harness.backends.magi import Magi
from harness.backends.reference import Reference
from harness.backends.sdpa import SdpaCudnn, SdpaFlash
from harness.backends.sharded import IMPLEMENTATIONS, Sharded
from harness.cases import Group, kernel_of

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Fm3(),
        FlashMask(),
        Reference(),
        Dense(),
        SdpaFlash(),
        SdpaCudnn(),
        Flex(),
        FlexTuned(),
        FlexFlash(),
        FlashAttn2(),
        FlashAttn3(),
        FlashAttn4(),
        FlashMask3(),
        Magi(),
    )
}

SHARED = tuple(IMPLEMENTATIONS)
"""Competitors whose ranks can share a sequence."""


def backend_of(name: str, group: Group) -> Backend:
    """The competitor of a group, by itself or on ranks that share the sequence, which may be simulated."""
    backend, sharing = BACKENDS[kernel_of(name)], group.sharing(name)
    if sharing is None:
        return backend
    if group.cluster is not None:
        from harness.simulate.backend import Simulated  # here, since it is built on this package

        return Simulated(sharing, group.cluster)
    return Sharded(backend, sharing)


__all__ = ["BACKENDS", "SHARED", "Attend", "Availability", "Backend", "MissingBackend", "backend_of"]
