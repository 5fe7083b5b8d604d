"""What is too much for a CPU: an estimate of memory and time before anything runs.

A GPU that is asked too much says so in seconds, and the row records it. A CPU starts swapping, or computes for hours. The
estimates are for the inputs and the calls; what one competitor needs beyond that it knows itself (``Backend.unsupported``).
"""

from __future__ import annotations

from pathlib import Path

from harness.backends.base import gib
from harness.cases import Group, Problem
from harness.machine import Machine

TENSORS = 16
"""float32 tensors of the shape of q alive at once: inputs, outputs, gradients, a second layout, the check's own copies."""

SHARE = 0.8
"""Share of the available memory that a run may plan with."""

CORE_FLOPS = 10e9
"""float32 FLOP/s that one core surely reaches. Wrong by a factor of a few on any machine, which is what it is for."""

PASS_FACTOR = {"forward": 1.0, "backward": 2.5, "both": 3.5}
"""FLOPs of a pass in forwards (the backward recomputes the scores)."""


def too_large(problem: Problem, machine: Machine, per_head: bool, tensors: bool = True) -> str | None:
    """Why the tensors of the problem cannot fit this machine's memory, or None; known before anything is built.

    Args:
        problem: the shapes. machine: available memory. per_head: every batch item and head has mask vectors of its own.
        tensors: inputs and results are made in this memory too, not only the mask.
    """
    masks = problem.batch * problem.heads if per_head else 1
    # Four int32 vectors and as much again while they are made; on a GPU the tensors themselves live elsewhere.
    need = 32 * problem.seqlen * masks
    if tensors:
        need += TENSORS * 4 * problem.batch * problem.seqlen * problem.heads * problem.head_dim
    free = machine.memory_available
    if free is None or need <= SHARE * free:
        return None
    return (
        f"{problem.mask.family} with seqlen={problem.seqlen} needs about {gib(need)} of memory and {gib(free)} are available; "
        "take a shorter sequence, fewer heads or a smaller batch"
    )


BYTES_A_BYTE = 50
"""Bytes of memory that a byte of a length file may become: a document takes 130, and its line three or more."""


def too_long_to_read(path: Path, machine: Machine) -> str | None:
    """Why the documents of a length file cannot fit this machine's memory, or None; known before it is read."""
    free, need = machine.memory_available, path.stat().st_size * BYTES_A_BYTE if path.is_file() else 0
    if free is None or need <= SHARE * free:
        return None
    return (
        f"{path.name} has {gib(path.stat().st_size)}; its documents need about {gib(need)} of memory and {gib(free)} are "
        "available; give a shorter list"
    )


def too_much(group: Group, density: float, machine: Machine) -> str | None:
    """Why the group would compute for too long on this CPU, or None.

    Args:
        group: the problem and its competitors.
        density: visible pairs over all pairs.
        machine: its cores.
    """
    p = group.problem
    flops = 4.0 * p.batch * p.heads * p.seqlen**2 * p.head_dim * density * max(PASS_FACTOR[name] for name in group.passes)
    seconds = group.timing.min_samples * flops / (CORE_FLOPS * machine.cores)
    if seconds > group.timing.timeout_s:
        return (
            f"{group.title} would compute for about {seconds:.0f} s a round on {machine.cores} cores, more than "
            f"timing.timeout_s={group.timing.timeout_s:g}; take a shorter sequence or fewer heads, or raise timing.timeout_s"
        )
    return None
