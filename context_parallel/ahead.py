"""A mask for every step, without waiting for it: plans are made ahead in a thread, and go up beside the computation.

The vectors of a step's mask come from the data loader, on the host. One thread takes them in order, makes the plan, cuts and
prepares this rank's local masks, and copies them up from pinned memory on a stream of its own. The step that uses them puts
its stream behind that copy; neither the host nor the device waits for the other. Nothing is sent: every rank does the same.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fm3_kernel import PreparedMask
from masks.column_mask import ColumnMask

if TYPE_CHECKING:
    from context_parallel.runtime import ContextParallel


class _Made(NamedTuple):
    """What the thread hands over: one step's runtime, an error, or neither at the end."""

    step: ContextParallel | None
    error: BaseException | None = None
    up: torch.cuda.Event | None = None


def ahead(first: ContextParallel, masks: Iterable[ColumnMask], device: torch.device, depth: int) -> Iterator[ContextParallel]:
    """The runtimes of :meth:`ContextParallel.ahead`, in order."""
    made: queue.Queue[_Made] = queue.Queue(maxsize=depth)
    stop = threading.Event()
    thread = threading.Thread(target=_make, args=(first, masks, device, made, stop), name="plans ahead", daemon=True)
    thread.start()
    try:
        while True:
            step, error, up = made.get()
            if error is not None:
                raise error
            if step is None:
                return
            if up is not None:
                _behind(up, step, device)
            yield step
    finally:
        stop.set()
        while thread.is_alive():
            try:
                made.get(timeout=0.05)  # the thread may be waiting for room
            except queue.Empty:
                continue


def upload(mask: ColumnMask, device: torch.device) -> ColumnMask:
    """The mask on the device; on a GPU without waiting for the copy."""
    if device.type != "cuda":
        return mask.to(device)
    moved: dict[str, Any] = {
        name: (x.pin_memory() if x.device.type == "cpu" else x).to(device, non_blocking=True)
        for name, x in mask.tensors().items()
    }
    return replace(mask, **moved, placed=device)


def _make(
    first: ContextParallel, masks: Iterable[ColumnMask], device: torch.device, made: queue.Queue[_Made], stop: threading.Event
) -> None:
    try:
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        for mask in masks:
            if stop.is_set():
                return
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                step = first.with_mask(mask, check=False)
                step.prepare(device)
                up = stream.record_event() if stream is not None else None
            made.put(_Made(step, up=up))
        made.put(_Made(None))
    except BaseException as error:  # raised where the step is asked for
        made.put(_Made(None, error))


def _behind(up: torch.cuda.Event, step: ContextParallel, device: torch.device) -> None:
    """Puts the current stream behind the copies, and their memory at its disposal until it is done with it."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(up)
    for prepared in step.prepared():
        for x in _tensors(prepared):
            x.record_stream(stream)


def _tensors(prepared: PreparedMask) -> Iterator[Tensor]:
    yield from prepared.tensors
    if prepared.preparation is not None:
        yield from (prepared.preparation.bounds, prepared.preparation.order)
