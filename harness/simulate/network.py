"""Who gets how much of a link: the rates of all transfers under way, when they share ports.

Every GPU has a port into its node's NVLink switch and one into the network, each with both directions. A transfer takes its
source's port outwards and its target's inwards, and a port is shared max-min fairly: everyone grows alike until a port is
full, and those that it holds back stay there. A transfer's rate is a share of what it reaches alone, so transfers of different
ways through one port add up to one. Switches are taken as wide enough for all ports.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shares(outwards: Sequence[int], inwards: Sequence[int], ports: int) -> np.ndarray:
    """Max-min fair shares, float64 ``[transfers]``, each above 0 and at most 1.

    Args:
        outwards, inwards: of every transfer, the port it leaves by and the one it arrives by.
        ports: how many there are, both kinds counted.
    """
    ends = np.array([outwards, inwards], dtype=np.int64)
    found = np.zeros(ends.shape[1])
    room = np.ones(ports)
    growing = np.ones(ends.shape[1], dtype=bool)
    while growing.any():
        users = np.bincount(ends[:, growing].ravel(), minlength=ports)
        level = np.divide(room, users, out=np.full(ports, np.inf), where=users > 0)
        least = level.min()
        full = level <= least * (1 + 1e-12)
        held = growing & (full[ends[0]] | full[ends[1]])
        found[held] = least
        room -= least * np.bincount(ends[:, held].ravel(), minlength=ports)
        growing &= ~held
    return found
