"""Exchanges by themselves: late and reordered arrivals, bytes between nodes, and the order of copies between GPUs.

The last is tested without GPUs: threads are ranks, their memory is shared, and a stream is the order in which a thread works.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from processes import run_ranks
from test_attention import TOLERANCE, alone, assert_rows, family_mask, inputs, together
from torch import Tensor

from context_parallel import ContextParallel
from context_parallel.exchanges import Messages, Pending, Receive, Send, Stage, Symmetric
from context_parallel.exchanges.symmetric import HALVES, SMALLEST
from context_parallel.group import ExchangeError, Group
from context_parallel.shards import token_bytes
from context_parallel.strategies import STRATEGIES
from masks.column_mask import ColumnMask

CARRIED = [name for name, one in STRATEGIES.items() if one.way != "flex"]


class Late(Messages):
    """Messages that arrive as late as they may: until a stage is waited for, what it receives is NaN.

    Messages of different peers are posted in another order on every rank, and nobody is in time.
    """

    def __init__(self, group: Group, seed: int) -> None:
        super().__init__(group)
        self._random = random.Random(seed)

    def start(self, stages: Sequence[Stage], room: int = 0) -> list[Pending]:
        return [self._late(stage) for stage in stages]

    def _late(self, stage: Stage) -> Pending:
        self._sleep()
        peers = list(range(self._group.size))
        self._random.shuffle(peers)
        hidden = [Receive(one.source, torch.empty_like(one.into)) for one in stage.receives]
        for one in stage.receives:
            one.into.fill_(torch.nan)
        sends = sorted(stage.sends, key=lambda one: peers[one.target])
        (under_way,) = super().start([Stage(sends, sorted(hidden, key=lambda one: peers[one.source]))])

        def wait() -> None:
            self._sleep()
            under_way.wait()
            for one, arrived in zip(stage.receives, hidden, strict=True):
                one.into.copy_(arrived.into)

        return SimpleNamespace(wait=wait)

    def _sleep(self) -> None:
        time.sleep(self._random.choice((0, 0, 0, 0.001, 0.004)))


def steps_with_late_messages(rank: int, count: int) -> None:
    """A new mask at every step, planned ahead in a thread; never the same one twice."""
    world = dist.get_world_size()
    tensors = inputs(300, heads=2 * world, kv_heads=world)
    ways: list[dict[str, Any]] = [{"strategy": name} for name in CARRIED]
    ways += [{"keep": False, "stages": 2}, {"ranks_per_node": 2, "stages": 2}, {"ranks_per_node": 2, "keep": False}]
    firsts = [
        ContextParallel(None, family_mask("causal", 300), exchange=Late(Group(), 100 * rank + i), check=False, **way)
        for i, way in enumerate(ways)
    ]
    dist.barrier()
    masks = [[family_mask("random_eviction", 300, seed=seed) for seed in range(i, count, len(ways))] for i in range(len(ways))]
    queues = [first.ahead(mine, "cpu") for first, mine in zip(firsts, masks, strict=True)]
    for step in range(count):
        cp = next(queues[step % len(ways)])
        assert torch.equal(cp.mask.lts, family_mask("random_eviction", 300, seed=step).lts)
        assert_rows(cp, together(cp, tensors), alone(cp.mask, tensors), f"step {step}, {ways[step % len(ways)]}")
    assert all(next(one, None) is None for one in queues)


@pytest.mark.parametrize("count", [33, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_steps_with_late_messages(count: int, tmp_path: Path) -> None:
    run_ranks(steps_with_late_messages, 4, tmp_path, count)


# -- two levels ----------------------------------------------------------------------------------------------------------


class Counted(Messages):
    """Messages, and how many tokens went to whom."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.tokens = np.zeros(group.size, dtype=np.int64)

    def start(self, stages: Sequence[Stage], room: int = 0) -> list[Pending]:
        for stage in stages:
            for one in stage.sends:
                self.tokens[one.target] += len(one.tokens())
        return super().start(stages, room)


def union_of_nodes(cp: ContextParallel, mask: ColumnMask, per_node: int) -> int:
    """Columns that some rank of a node sees and none of it owns, in whole units, from the dense mask."""
    rows = torch.arange(mask.seqlen_q)
    seen = mask.visible(rows, rows).flatten(0, 1).any(0)
    total = 0
    for first in range(0, cp.ranks, per_node):
        mine = torch.cat([rows[a:b] for rank in range(first, first + per_node) for a, b in cp.plan.rows(rank)])
        needed = {int(column) // cp.plan.grid.unit for column in seen[mine].any(0).nonzero().flatten()}
        needed -= {int(row) // cp.plan.grid.unit for row in mine}
        total += sum(int(cp.plan.grid.unit_lengths()[unit]) for unit in needed)
    return total


def bytes_of_nodes(rank: int) -> None:
    """Each unit enters a node once forward, its gradient leaves it once backward; results stay the same."""
    for family in ("causal_document", "causal", "share_question"):
        mask, tensors = family_mask(family, 1500), inputs(1500)
        want = alone(mask, tensors)
        for per_node in (1, 2, 3):
            counted = Counted(Group())
            how = {"ranks_per_node": per_node, "stages": 2, "placement": "dual_chunk"}
            cp = ContextParallel(None, mask, exchange=counted, **how)
            out = together(cp, tensors)
            assert_rows(cp, out, want, f"{family} on nodes of {per_node}")
            # Forward and backward are the same messages in both directions: both together is twice the union.
            far = [target for target in range(cp.ranks) if target // per_node != rank // per_node]
            crossed = torch.tensor(int(counted.tokens[far].sum()))
            dist.all_reduce(crossed)
            assert int(crossed) == 2 * union_of_nodes(cp, mask, per_node) == 2 * int(cp.plan.bytes_sent(network=True).sum())


def test_a_unit_crosses_the_network_once_a_node(tmp_path: Path) -> None:
    run_ranks(bytes_of_nodes, 6, tmp_path)


# -- nothing sent, nothing computed ----------------------------------------------------------------------------------------


def halves(rank: int) -> None:
    """Without the exchange nothing is sent after the first pass and results stay right; without computing they are zero."""
    world = dist.get_world_size()
    tensors = inputs(600, heads=2 * world, kv_heads=world)
    mask = family_mask("causal_document", 600)
    want = alone(mask, tensors)
    for strategy in CARRIED:
        counted = Counted(Group())
        cp = ContextParallel(None, mask, strategy=strategy, exchange=counted)
        present = cp.without_exchange()
        together(present, tensors)
        sent = counted.tokens.copy()
        got = together(present, tensors)
        # A ring adds to what it received, so its gradients are right the first time only.
        kept = 2 if STRATEGIES[strategy].way == "ring" else 5
        for here, whole in zip(got[:kept], want[:kept], strict=True):
            torch.testing.assert_close(here, cp.shard(whole), rtol=TOLERANCE, atol=TOLERANCE)
        assert (counted.tokens == sent).all(), strategy
        idle = together(cp.without_compute(), tensors)
        total = torch.tensor(float(sum(x.abs().sum() for x in idle)))
        assert total == 0 and (counted.tokens - sent == sent).all(), strategy
        assert_rows(cp, together(cp, tensors), want, f"{strategy} afterwards")


def test_exchange_and_computation_apart(tmp_path: Path) -> None:
    run_ranks(halves, 3, tmp_path)


def backward_again(rank: int) -> None:
    """As the halves are timed: one graph, its backward pass again and again, and out as large as the gradients."""
    world = dist.get_world_size()
    mask, tensors = family_mask("causal_document", 600), inputs(600, heads=world, kv_heads=world)
    for strategy in CARRIED:
        cp = ContextParallel(None, mask, strategy=strategy)
        for half in (cp.without_exchange(), cp.without_compute()):
            leaves = [cp.shard(x).detach().requires_grad_() for x in tensors[:3]]
            out = half.attention(*leaves)
            for _ in range(3):
                found = torch.autograd.grad(out, leaves, torch.ones_like(out), retain_graph=True)
            assert all(x.isfinite().all() for x in found), strategy


def test_a_half_can_be_timed(tmp_path: Path) -> None:
    run_ranks(backward_again, 2, tmp_path)


# -- copies between GPUs, without GPUs -------------------------------------------------------------------------------------


class Node:
    """The memory and flags that the ranks of a node share; a flag is (waiting rank, setting rank, channel)."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.memory, self.flags = ranks, [None] * ranks, set()
        self.barrier, self.changed = threading.Barrier(ranks), threading.Condition()


class Handle:
    """One rank's handle, as torch's: but a flag that is set while it is set is an error, and so is a long wait."""

    def __init__(self, node: Node, rank: int, size: int) -> None:
        self.node, self.rank = node, rank
        node.barrier.wait()
        node.memory[rank] = torch.full((size,), 255, dtype=torch.uint8)
        node.flags.clear()
        node.barrier.wait()

    def get_buffer(self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int) -> Tensor:
        return self.node.memory[rank].view(dtype)[storage_offset : storage_offset + int(np.prod(sizes))].view(sizes)

    def put_signal(self, dst_rank: int, channel: int, timeout_ms: int) -> None:
        with self.node.changed:
            flag = (dst_rank, self.rank, channel)
            assert flag not in self.node.flags, f"flag {flag} is set twice"
            self.node.flags.add(flag)
            self.node.changed.notify_all()

    def wait_signal(self, src_rank: int, channel: int, timeout_ms: int) -> None:
        flag = (self.rank, src_rank, channel)
        with self.node.changed:
            assert self.node.changed.wait_for(lambda: flag in self.node.flags, timeout_ms / 1000), f"{flag} never came"
            self.node.flags.remove(flag)


class OnThreads(Symmetric):
    def __init__(self, node: Node, rank: int) -> None:
        super().__init__(SimpleNamespace(rank=rank, size=node.ranks, timeout_ms=20000, device=torch.device("cpu")))  # type: ignore[arg-type]
        self.node, self.grown = node, 0

    def _rendezvous(self, size: int, device: torch.device) -> Any:
        self.grown += 1
        return Handle(self.node, self._group.rank, size)


def epoch_of(seed: int, ranks: int) -> tuple[list[dict[tuple[int, int], int]], int]:
    """Stages of messages, tokens by (source, target), and the bytes of the rank that sends most; any rank may have none."""
    draw = random.Random(seed)
    largest = 900 if seed % 7 else 40000
    stages = [
        {(a, b): draw.randint(1, largest) for a in range(ranks) for b in range(ranks) if a != b and draw.random() < 0.5}
        for _ in range(draw.randint(1, 3))
    ]
    sent = [sum(n for stage in stages for (a, _), n in stage.items() if a == rank) for rank in range(ranks)]
    return stages, 8 * max(sent)


def run_epochs(exchange: OnThreads, rank: int, ranks: int, count: int) -> None:
    sleeps = random.Random(rank)
    pending: list[tuple[Pending, list[tuple[Receive, Tensor]]]] = []
    for number in range(count):
        stages, room = epoch_of(number, ranks)
        before = [0] * ranks
        mine = []
        for place, stage in enumerate(stages):
            sends, receives = [], []
            for (source, target), tokens in stage.items():
                values = torch.arange(tokens, dtype=torch.int64) + 1000003 * number + 101 * place + 7 * source + target
                if source == rank:
                    sends.append(Send(target, lambda values=values: values, before[source]))
                if target == rank:
                    receives.append((Receive(source, torch.zeros_like(values), before[source]), values))
                before[source] += tokens
            mine.append((Stage(sends, [one for one, _ in receives]), receives))
        time.sleep(sleeps.choice((0, 0, 0, 0.002)))
        started = exchange.start([stage for stage, _ in mine], room)
        pending += list(zip(started, [receives for _, receives in mine], strict=True))
        # Some are waited for late: epochs overlap.
        while len(pending) > 4:
            check(*pending.pop(0))
    for one in pending:
        check(*one)


def check(under_way: Pending, receives: list[tuple[Receive, Tensor]]) -> None:
    under_way.wait()
    for one, values in receives:
        assert torch.equal(one.into, values)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_copies_out_of_outboxes_bring_what_was_sent_whoever_is_late(ranks: int) -> None:
    """Also while outboxes grow. No flag is set twice, nobody waits for ever, no outbox is written before it was read."""
    node, errors = Node(ranks), []

    def go(rank: int) -> None:
        try:
            exchange = OnThreads(node, rank)
            run_epochs(exchange, rank, ranks, 60)
            assert 1 <= exchange.grown <= 3
        except BaseException as error:
            errors.append(error)
            node.barrier.abort()

    threads = [threading.Thread(target=go, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads), errors


def test_a_gpu_that_cannot_share_its_memory_says_what_to_do() -> None:
    class Alone(OnThreads):
        def _rendezvous(self, size: int, device: torch.device) -> Any:
            assert size == HALVES * SMALLEST
            raise RuntimeError("peer access is not supported")

    with pytest.raises(ExchangeError, match="rank 0 of 2: sharing .* failed: peer access .*; exchange='nccl' shares none"):
        Alone(Node(2), 0).start([Stage()], 100)


def test_bytes_of_a_token_are_those_of_keys_and_values() -> None:
    assert token_bytes(torch.zeros(2, 5, 3, 8, dtype=torch.bfloat16)) == 2 * 2 * 3 * 8 * 2
