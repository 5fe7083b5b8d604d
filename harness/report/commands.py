"""The command that measures a recorded case again, from the row alone.

What identifies the case is written out; of what the user typed, only the file of lengths (rows hold no documents) is
taken over. Builds text, runs nothing; every word is quoted for the shell.
"""

from __future__ import annotations

import shlex
from typing import Any

from harness.rows import Row
from masks.paper_lists import VARIANTS

_SAMPLED = {"sampled": ("mask.documents=sampled",), "sampled_cut": ("mask.documents=sampled", "mask.cut=true")}
_FILE_KEYS = ("mask.lengths", "mask.column", "mask.policy")


def run_command(row: Row) -> str:
    """The command of the whole run that the row comes from, as it was typed."""
    return _join(row["overrides"])


def case_command(row: Row) -> str:
    """The command of this one case."""
    words = [f"mask={row['mask']}", *_documents(row)]
    words += [f"mask.{name}={_value(value)}" for name, value in sorted(row["mask_params"].items()) if value is not None]
    words += [f"kernel.names=[{row['kernel']}]", f"seqlen={row['seqlen']}", f"passes=[{row['pass']}]"]
    words += [f"{name}={row[name]}" for name in ("batch", "heads", "kv_heads", "head_dim", "dtype", "seed", "device")]
    words += ["deterministic=true"] if row["deterministic"] else []
    # On a CPU what is called burst here was taken with the short timing that is the default there.
    words += [f"timing={'quick' if row['device'] == 'cpu' and row['protocol'] == 'burst' else row['protocol']}"]
    words += [f"timing.l2={row['l2']}"] if row["l2"] != "cold" else []
    if row["cp_degree"] > 1:
        words += [f"{name}={row[name]}" for name in ("cp_degree", "strategy", "exchange") if row[name] is not None]
    if row["source"] == "simulated":
        typed = [str(word) for word in row["overrides"] if str(word).startswith("hardware")]
        words += ["source=simulated", *(typed or _cluster(row))]
    # A store of its own: in the old one, what is recorded counts and would not be measured again.
    return _join([*words, "results_dir=results/local/again"])


def _cluster(row: Row) -> list[str]:
    return [f"hardware={row['simulation']['cluster']}"] if row["simulation"] is not None else []


def _documents(row: Row) -> list[str]:
    variant = row["mask_variant"]
    if variant is None:
        return []
    typed = [str(word) for word in row["overrides"] if str(word).partition("=")[0] in _FILE_KEYS]
    if any(word.startswith("mask.lengths=") for word in typed):
        return typed
    if variant in VARIANTS:
        return [f"mask.variant={variant}"]
    return list(_SAMPLED.get(variant, (f'mask.lengths="{variant}"',)))


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _join(words: list[Any]) -> str:
    return " ".join(["python -m harness", *(shlex.quote(str(word)) for word in words)])
