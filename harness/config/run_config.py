"""The run: everything that was asked for, resolved and checked. Frozen, plain types, no Hydra.

``harness.expand`` turns it into groups of cases. What depends on the machine at hand (is there a GPU, is there enough
memory, is the file of lengths good) is checked there; what can be judged from the numbers alone is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from harness.cases import Timing, stable_hash
from harness.config.errors import ConfigError, refusal, require_once
from harness.rows import PASSES, PROTOCOLS
from plots.folder import RESULTS_DIR

DTYPES = ("bfloat16", "float16", "float32")
DEVICES = ("cuda", "cpu")
MAX_SEQLEN = 2**31 - 1
"""Row indices are int32."""
MAX_HEAD_DIM = 256
MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Documents:
    """Where documents come from. source: paper (``variants``), sampled, or file (``lengths``, how to read it)."""

    source: str = "paper"
    variants: tuple[str, ...] = ()
    lengths: str | None = None
    column: str | None = None
    policy: str | None = None
    cut: bool = False


@dataclass(frozen=True)
class RunConfig:
    """One run. ``kernels`` None: every competitor that can run. ``batch`` None: ``tokens // seqlen``, at least 1,
    and 1 where ranks share a sequence.

    ``strategies`` None: all. ``params`` holds only what the user set; a family in ``families`` takes those that it knows.
    ``gpus``: the names of the GPUs that the hardware file is about, empty for any. ``peak_tflops``: by dtype, only the known
    ones. ``tokens_a_rank``: the length is this times the degree, in place of ``seqlens``. ``cluster``: what it is simulated on;
    None: it is measured.

    Raises:
        ConfigError: a value out of its range; the message names the key, the value and what is allowed.
    """

    families: tuple[str, ...]
    seqlens: tuple[int, ...]
    device: str
    dtype: str
    head_dim: int
    heads: int
    kv_heads: int
    batch: int | None = None
    tokens: int = 1
    documents: Documents = field(default_factory=Documents)
    params: Mapping[str, int | float] = field(default_factory=dict)
    kernels: tuple[str, ...] | None = None
    passes: tuple[str, ...] = ("forward", "backward")
    deterministic: bool = False
    timing: Timing = field(default_factory=Timing)
    seed: int = 0
    hardware: str = "cpu"
    gpus: tuple[str, ...] = ()
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    cp_degrees: tuple[int, ...] = (1,)
    tokens_a_rank: int | None = None
    cluster: str | None = None
    strategies: tuple[str, ...] | None = None
    exchange: str | None = None
    source: str = "auto"
    results_dir: str = RESULTS_DIR
    dry_run: bool = False

    def __post_init__(self) -> None:
        _member("device", self.device, DEVICES)
        _member("dtype", self.dtype, DTYPES)
        _several("masks", self.families)
        if self.tokens_a_rank is None:
            _several("seqlens", self.seqlens)
        else:
            _integer("tokens_a_rank", self.tokens_a_rank, 1, MAX_SEQLEN // max(self.cp_degrees, default=1))
        _several("cp_degrees", self.cp_degrees)
        _several("passes", self.passes)
        for pass_ in self.passes:
            _member("passes", pass_, PASSES)
        if self.kernels is not None:
            _several("kernel.names", self.kernels)
        if self.strategies is not None:
            _several("sweep.strategies", self.strategies)
        for seqlen in self.seqlens:
            _integer("seqlen", seqlen, 1, MAX_SEQLEN)
        _integer("head_dim", self.head_dim, 1, MAX_HEAD_DIM)
        _integer("heads", self.heads, 1)
        _integer("kv_heads", self.kv_heads, 1)
        _integer("tokens", self.tokens, 1)
        for degree in self.cp_degrees:
            _integer("cp_degree", degree, 1)
        _integer("seed", self.seed, 0, MAX_SEED)
        if self.batch is not None:
            _integer("batch", self.batch, 1)
        if self.heads % self.kv_heads:
            fitting = [str(n) for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise ConfigError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}; allowed: {', '.join(fitting)}")
        for name, peak in self.peak_tflops.items():
            _number(f"hardware.peak_tflops.{name}", peak, above=0)
        if not self.results_dir.strip():
            raise ConfigError("results_dir is empty; give a folder.")
        if self.cp_degrees == (1,):
            strategy = None if self.strategies is None else ",".join(self.strategies)
            for name, value in (("strategy", strategy), ("exchange", self.exchange)):
                if value is not None:
                    raise ConfigError(
                        f"{name}={value} means nothing with cp_degree=1; give a cp_degree above 1, or leave it out"
                    )
        self._check_params()
        self._check_timing()

    def _check_params(self) -> None:
        for name, value in self.params.items():
            if name == "keep_rate":
                _number("mask.keep_rate", value, least=0, most=1)
            else:
                _integer(f"mask.{name}", value, 0, MAX_SEQLEN)

    def _check_timing(self) -> None:
        t = self.timing
        _member("timing.protocol", t.protocol, PROTOCOLS)
        _member("timing.l2", t.l2, ("cold", "warm"))
        _integer("timing.rounds", t.rounds, 1)
        _integer("timing.min_samples", t.min_samples, 1)
        _integer("timing.max_samples", t.max_samples, 1)
        if t.max_samples < t.min_samples:
            raise ConfigError(f"timing.max_samples={t.max_samples} is below timing.min_samples={t.min_samples}.")
        _number("timing.target_s", t.target_s, above=0)
        _number("timing.heat_s", t.heat_s, least=0)
        _number("timing.timeout_s", t.timeout_s, above=0)
        if (t.heat_s > 0) != (t.protocol == "sustained"):
            rule = "sustained is heated first (above 0), burst is not (0)"
            raise ConfigError(f"timing.heat_s={t.heat_s:g} does not go with timing.protocol={t.protocol}; {rule}")

    def points(self) -> list[tuple[int, int]]:
        """Lengths and the ranks that share them, shortest first."""
        if self.tokens_a_rank is not None:
            return [(self.tokens_a_rank * degree, degree) for degree in sorted(self.cp_degrees)]
        return [(seqlen, degree) for seqlen in sorted(self.seqlens) for degree in sorted(self.cp_degrees)]

    def batch_at(self, seqlen: int, degree: int = 1) -> int:
        """Sequences at a length. Ranks that share a sequence share one if nothing else was said: it is what fills them."""
        if self.batch is not None:
            return self.batch
        return 1 if degree > 1 else max(1, self.tokens // seqlen)

    def summary(self) -> str:
        """What was left open and what became of it, on one line."""
        batch = self.batch if self.batch is not None else "1" if min(self.cp_degrees) > 1 else f"{self.tokens}/seqlen"
        seqlens = ",".join(map(str, sorted({seqlen for seqlen, _ in self.points()})))
        simulated = f" SIMULATED on {self.cluster}" if self.cluster is not None else ""
        return (
            f"hardware={self.hardware} masks={','.join(self.families)} seqlens={seqlens} "
            f"dtype={self.dtype} head_dim={self.head_dim} heads={self.heads} kv_heads={self.kv_heads} batch={batch} "
            f"protocol={self.timing.protocol} rounds={self.timing.rounds}{simulated}"
        )

    def hash(self) -> str:
        """Hash of everything but where the rows go and whether they are only planned, 16 hex digits."""
        said = asdict(self)
        del said["results_dir"], said["dry_run"]
        return stable_hash(said)


def _member(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(refusal(name, value, allowed))


def _several(name: str, values: tuple[object, ...]) -> None:
    if not values:
        raise ConfigError(f"{name} is an empty list; give at least one.")
    require_once(name, values)


def _integer(name: str, value: object, least: int, most: int | None = None) -> None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most)
    if not good:
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name}={value} is not allowed; it is an integer, {bounds}.")


def _number(
    name: str, value: float, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> None:
    bounds = [
        (f"at least {least}", least is None or value >= least),
        (f"above {above}", above is None or value > above),
        (f"at most {most}", most is None or value <= most),
    ]
    if not (math.isfinite(value) and all(kept for _, kept in bounds)):
        said = [text for text, limit in zip((b[0] for b in bounds), (least, above, most), strict=True) if limit is not None]
        raise ConfigError(f"{name}={value} is not allowed; it is a number, {', '.join(said)}.")
