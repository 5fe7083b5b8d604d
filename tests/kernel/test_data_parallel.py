"""Attention inside DistributedDataParallel and FSDP: two processes on the CPU learn as one that sees both their sequences."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tiny_model import train
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from fm3_kernel import flashmask_attention, prepare_mask
from masks.documents import documents_from_lengths
from masks.families import build_mask

LENGTH, STEPS = 256, 4


def run(rank: int, port: int, way: str, folder: str) -> None:
    """One process, on a sequence of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        losses = losses_of(way, (1 + rank,), recompute=way == "fsdp")
        torch.save(losses, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def losses_of(way: str, seeds: tuple[int, ...], recompute: bool = False) -> list[float]:
    mask = prepare_mask(build_mask("causal_document", LENGTH, documents=documents_from_lengths([100, 30, 126])))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flashmask_attention(q, k, v, mask)

    def wrap(model: nn.Module) -> nn.Module:
        if way == "ddp":
            return DistributedDataParallel(model)
        if way == "fsdp":
            mesh = init_device_mesh("cpu", (2,))
            for block in model.blocks:  # type: ignore[union-attr]
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model

    return train(attend, STEPS, length=LENGTH, device="cpu", dtype=torch.float32, seeds=seeds, recompute=recompute, wrap=wrap)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_train_as_one(way: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(run, args=(port, way, str(tmp_path)), nprocs=2, join=True)
    alone = losses_of("alone", (1, 2))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first != second
    assert [(a + b) / 2 for a, b in zip(first, second, strict=True)] == pytest.approx(alone, rel=1e-4)
    assert alone[-1] < alone[0]
