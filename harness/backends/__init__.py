"""The competitors, by name, in the order in which tables show them."""

from __future__ import annotations

from harness.backends.base import Attend, Availability, Backend
from harness.backends.dense import Dense
from harness.backends.flex import Flex, FlexFlash
from harness.backends.fm3 import Fm3
from harness.backends.reference import Reference
from harness.backends.sdpa import SdpaCudnn, SdpaFlash
from harness.backends.sharded import IMPLEMENTATIONS, Sharded
from harness.cases import Group

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (Fm3(), Reference(), Dense(), SdpaFlash(), SdpaCudnn(), Flex(), FlexFlash())
}

SHARED = tuple(IMPLEMENTATIONS)
"""Competitors whose ranks can share a sequence."""


def backend_of(name: str, group: Group) -> Backend:
    """The competitor of a group, by itself or on ranks that share the sequence."""
    backend = BACKENDS[name]
    return backend if group.sharing is None else Sharded(backend, group.sharing)


__all__ = ["BACKENDS", "SHARED", "Attend", "Availability", "Backend", "backend_of"]
