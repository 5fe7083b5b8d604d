"""The clock: steps that wait for other steps, computing that slows down beside transfers, transfers that share ports.

Discrete events: nothing happens between the end of one step and the next. The order of events is that of time, and of the
steps' numbers where times are equal, so the same steps give the same numbers everywhere.
"""

from __future__ import annotations

import heapq

import numpy as np

from harness.simulate.network import shares
from harness.simulate.steps import Lane, Steps, Times


def play(steps: Steps) -> Times:
    """Let it happen.

    Raises:
        ValueError: steps that wait for each other or for one that does not exist.
    """
    return _Play(steps).go()


class _Play:
    """Steps under way have an amount left (milliseconds of work, or bytes) that was true at ``since``, and a pace."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps.steps
        self.ranks = steps.ranks
        count = len(self.steps)
        self.waits = [0] * count
        self.followers: list[list[int]] = [[] for _ in range(count)]
        for number, step in enumerate(self.steps):
            for earlier in step.after:
                if not 0 <= earlier < number:
                    raise ValueError(f"step {number} waits for step {earlier}, which is not before it")
                self.followers[earlier].append(number)
            self.waits[number] = len(step.after)
        self.begin, self.end = np.zeros(count), np.zeros(count)
        self.left, self.since, self.pace = [0.0] * count, [0.0] * count, [0.0] * count
        self.turn = [0] * count
        self.events: list[tuple[float, int, int]] = []
        self.moving: dict[int, None] = {}
        self.working: list[dict[int, None]] = [{} for _ in range(self.ranks)]
        self.beside: list[list[float]] = [[] for _ in range(self.ranks)]

    def go(self) -> Times:
        now = 0.0
        for number, waits in enumerate(self.waits):
            if not waits:
                self._start(number, now)
        while self.events:
            now = self.events[0][0]
            touched: set[int] = set()
            transfers = False
            while self.events and self.events[0][0] <= now:
                _, number, turn = heapq.heappop(self.events)
                if turn == self.turn[number]:
                    transfers |= self._event(number, now, touched)
            if transfers:
                self._share(now)
            for rank in sorted(touched):
                for number in self.working[rank]:
                    self._set_pace(number, min(self.beside[rank], default=1.0), now)
        return Times(self.begin, self.end)

    def _start(self, number: int, now: float) -> None:
        step = self.steps[number]
        self.begin[number] = now
        self._push(number, now + step.delay)

    def _push(self, number: int, when: float) -> None:
        self.turn[number] += 1
        heapq.heappush(self.events, (when, number, self.turn[number]))

    def _event(self, number: int, now: float, touched: set[int]) -> bool:
        """The delay of a step is over, or the step is; returns whether transfers began or ended."""
        step = self.steps[number]
        if number in self.moving:
            del self.moving[number]
            for rank in {step.source, step.rank}:
                self.beside[rank].remove(step.lane.beside)  # type: ignore[union-attr]
                touched.add(rank)
            self._finish(number, now)
            return True
        if number in self.working[step.rank]:
            del self.working[step.rank][number]
            self._finish(number, now)
            return False
        if step.lane is not None and step.amount > 0:
            self.begin[number] = now
            self.moving[number] = None
            self.left[number], self.since[number] = step.amount, now
            for rank in {step.source, step.rank}:
                self.beside[rank].append(step.lane.beside)
                touched.add(rank)
            return True
        if step.work > 0:
            self.working[step.rank][number] = None
            self.left[number], self.since[number] = step.work, now
            touched.add(step.rank)
            return False
        self._finish(number, now)
        return False

    def _finish(self, number: int, now: float) -> None:
        self.end[number] = now
        for follower in self.followers[number]:
            self.waits[follower] -= 1
            if not self.waits[follower]:
                self._start(follower, now)

    def _share(self, now: float) -> None:
        """New paces for all transfers under way."""
        numbers = list(self.moving)
        if not numbers:
            return
        lanes: list[Lane] = [self.steps[number].lane for number in numbers]  # type: ignore[misc]
        # Ports outwards and inwards of every rank, within the node and then into the network.
        outwards = [2 * self.ranks * lane.network + self.steps[n].source for n, lane in zip(numbers, lanes, strict=True)]
        inwards = [
            2 * self.ranks * lane.network + self.ranks + self.steps[n].rank for n, lane in zip(numbers, lanes, strict=True)
        ]
        alone = len(set(outwards)) == len(set(inwards)) == len(numbers)  # no port has two
        found = [1.0] * len(numbers) if alone else shares(outwards, inwards, 4 * self.ranks).tolist()
        for number, lane, share in zip(numbers, lanes, found, strict=True):
            self._set_pace(number, lane.bytes_per_ms * share, now)

    def _set_pace(self, number: int, pace: float, now: float) -> None:
        """From now on at another pace; what was done so far is kept."""
        if pace == self.pace[number]:
            return
        self.left[number] = max(0.0, self.left[number] - self.pace[number] * (now - self.since[number]))
        self.since[number], self.pace[number] = now, pace
        self._push(number, now + self.left[number] / pace)
