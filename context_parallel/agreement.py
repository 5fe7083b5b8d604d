"""Do all ranks do the same? Asked once, before the first exchange, because afterwards nobody could tell them apart.

Each rank says what it was given, or why it refused it, and every rank hears all of it: so either all go on or all raise.
"""

from __future__ import annotations

from context_parallel.group import ContextParallelError, Group

Facts = dict[str, str]


def agree(group: Group, facts: Facts, refusal: Exception | None = None) -> None:
    """Raises on all ranks unless all state the same facts and none refuses.

    Args:
        facts: what must be equal, by name; the same names on every rank.
        refusal: the error with which this rank would have refused its arguments.

    Raises:
        ContextParallelError: names the ranks and what they were given. On a rank that refuses: its own error.
        ExchangeError: a rank did not answer.
    """
    heard = group.hear((facts, None if refusal is None else str(refusal)))
    if refusal is not None:
        raise refusal
    refused = [f"rank {rank}: {why}" for rank, (_, why) in enumerate(heard) if why is not None]
    if refused:
        raise ContextParallelError(f"refused by {'; '.join(refused)}")
    for name in facts:
        given: dict[str, list[int]] = {}
        for rank, (theirs, _) in enumerate(heard):
            given.setdefault(theirs[name], []).append(rank)
        if len(given) > 1:
            shown = "; ".join(f"{_ranks(ranks)}: {value}" for value, ranks in given.items())
            raise ContextParallelError(f"the ranks disagree on {name}, which must be the same for all: {shown}")


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
