"""How many units every group of ranks receives under a placement, and how an exchange of two chunks would change that.

A group is a rank or a node. It receives every unit that one of its chunks needs and none of its chunks owns, once. Both
change for the two groups of an exchange only, so after each one a few rows are counted anew.
"""

from __future__ import annotations

import numpy as np


class Traffic:
    """Received units under a placement that is changed chunk by chunk.

    Args:
        needs, owns: 0/1 float32 ``[slots, units]`` (a slot is a chunk, or stays empty); float32 because products of them
            are then matrix products, exact as long as there are fewer than 2**24 units.
        group_of_slot: int64 ``[slots]``.
        groups: number of groups.
    """

    def __init__(self, needs: np.ndarray, owns: np.ndarray, group_of_slot: np.ndarray, groups: int) -> None:
        self._needs, self._owns = needs, owns
        self.group = group_of_slot.copy()
        self._groups = groups
        slots = len(needs)
        # Units that a slot owns and does not need: they count only when another chunk of its group needs them.
        self._idle = owns * (1 - needs)
        self._own_needed = (owns * needs).sum(1)
        self._after = np.zeros((slots, slots), dtype=np.int64)
        self.received = np.zeros(groups, dtype=np.int64)
        self._count(range(groups))

    def _count(self, groups: range | tuple[int, ...]) -> None:
        """Counts anew what the groups receive, now and after each exchange of one of their slots."""
        for group in groups:
            own = np.flatnonzero(self.group == group)
            needs, owns = self._needs[own], self._owns[own]
            needed, owned = needs.sum(0), owns.sum(0)
            self.received[group] = np.count_nonzero((needed > 0) & (owned == 0))
            # Without the slot that leaves.
            rest, kept = ((needed - needs) > 0).astype(np.float32), owned - owns
            open_units = 1 - kept
            fixed = (rest * open_units).sum(1)
            gained = ((1 - rest) * open_units) @ self._needs.T
            brought = rest @ self._idle.T + self._own_needed
            self._after[own] = (fixed[:, None] + gained - brought).astype(np.int64)

    def after(self, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Units received once the slots ``mine`` and any slots y have changed places, int64 ``[len(mine), slots]`` twice.

        By the group of the slot in ``mine``, and by the group of y. Without meaning for two slots of one group.
        """
        return self._after[mine], self._after[:, mine].T

    def change(self, mine: np.ndarray) -> np.ndarray:
        """int64 ``[len(mine), slots]``: change of all received units by these exchanges; 0 within a group."""
        here, there = self.after(mine)
        now = self.received[self.group]
        change = here + there - now[mine][:, None] - now[None, :]
        change[self.group[mine][:, None] == self.group[None, :]] = 0
        return change

    def exchange(self, x: int, y: int) -> None:
        """Slots x and y change groups."""
        a, b = int(self.group[x]), int(self.group[y])
        if a != b:
            self.group[x], self.group[y] = b, a
            self._count((a, b))
