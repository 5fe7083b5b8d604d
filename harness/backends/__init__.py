"""The competitors, by name, in the order in which tables show them."""

from __future__ import annotations

from harness.backends.base import Attend, Availability, Backend
from harness.backends.dense import Dense
from harness.backends.flex import Flex, FlexFlash
from harness.backends.fm3 import Fm3
from harness.backends.reference import Reference
from harness.backends.sdpa import SdpaCudnn, SdpaFlash

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (Fm3(), Reference(), Dense(), SdpaFlash(), SdpaCudnn(), Flex(), FlexFlash())
}

__all__ = ["BACKENDS", "Attend", "Availability", "Backend"]
