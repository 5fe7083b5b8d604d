"""How units get from rank to rank: one small interface, ``base``, and one file a way of doing it. :func:`choose` by name."""

from __future__ import annotations

from context_parallel.exchanges.base import Exchange, Pending, Receive, Send, Stage
from context_parallel.exchanges.messages import Messages
from context_parallel.exchanges.symmetric import Symmetric
from context_parallel.group import BACKENDS, ContextParallelError, Group
from masks.spelling import allowed_names

EXCHANGES = ("auto", *BACKENDS, "symmetric")
"""Exchanges by name. ``auto`` is the backend that the group has for the tensors."""


def choose(name: str | None, group: Group) -> Exchange:
    """The exchange of that name on a group; None is ``auto``. Nothing is sent, and no device is touched.

    Raises:
        ContextParallelError: unknown; names the allowed ones.
    """
    if name not in (None, *EXCHANGES):
        raise ContextParallelError(f"unknown exchange {name!r}; {allowed_names(name, EXCHANGES)}")
    if name == "symmetric":
        return Symmetric(group)
    return Messages(group, None if name == "auto" else name)


__all__ = ["EXCHANGES", "Exchange", "Messages", "Pending", "Receive", "Send", "Stage", "Symmetric", "choose"]
