"""A competitor's passes as calls without arguments, which is what a timer takes."""

from __future__ import annotations

import contextlib

import torch

from harness.backends.base import Attend
from harness.inputs import Inputs
from harness.timing import Call

GRADIENTS = ("backward", "both")


class Passes:
    """Forward, backward and both of one attention on one set of inputs.

    Args:
        attend: takes q, k, v. inputs: what it is given, and dout. gradients: whether there are any; the forward pass then
            saves what the backward needs, as in training.
    """

    def __init__(self, attend: Attend, inputs: Inputs, gradients: bool) -> None:
        self._attend, self._dout, self._gradients = attend, inputs.dout, gradients
        self._leaves = [t.detach().requires_grad_(gradients) for t in (inputs.q, inputs.k, inputs.v)]
        self._out: torch.Tensor | None = None

    def call(self, pass_: str) -> Call:
        """A pass of ``rows.PASSES``."""
        return {"forward": self._forward, "backward": self._backward, "both": self._both}[pass_]

    def remember(self, pass_: str) -> None:
        """Run what a pass starts from and is not timed."""
        if pass_ == "backward" and self._out is None:
            self._out = self._forward()

    def forget(self) -> None:
        """Free what is remembered: a forward pass holds the keys that it has gathered."""
        self._out = None

    def _forward(self) -> torch.Tensor:
        with contextlib.nullcontext() if self._gradients else torch.no_grad():
            return self._attend(*self._leaves)[0]

    def _backward(self) -> object:
        self.remember("backward")
        assert self._out is not None
        return torch.autograd.grad(self._out, self._leaves, self._dout, retain_graph=True)

    def _both(self) -> object:
        return torch.autograd.grad(self._forward(), self._leaves, self._dout)
