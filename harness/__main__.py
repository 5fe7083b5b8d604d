"""``python -m harness``: the command line. Hydra reads it; what is asked is checked whole; then the runner runs.

Every job is composed, resolved and expanded before the first one starts, so a wrong question costs nothing and is
answered once, on stderr, with exit code 2. What is left for Hydra is what it does best: ``--help``, ``--cfg``, ``--info``
and the loop of ``--multirun``. Nothing below this file knows Hydra.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness.cases import Group
from harness.config import ConfigError, RunConfig
from harness.config.compose import VERSION_BASE, load, to_config
from harness.config.overrides import jobs
from harness.config.resolve import resolve
from harness.config.schema import CONF, register
from harness.machine import Machine, this_machine
from harness.rows import RowError

OK, FAILED, USAGE, BAD_DATA, INTERRUPTED = 0, 1, 2, 4, 130


@dataclass(frozen=True)
class Plan:
    """One job: what was typed, what it means, and its groups of cases."""

    overrides: tuple[str, ...]
    config: RunConfig
    groups: tuple[Group, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 0 ok, 1 a case failed, 2 wrong question, 4 damaged rows, 130 interrupted."""
    words = ["dry_run=true" if word == "--dry-run" else word for word in (sys.argv[1:] if argv is None else argv)]
    try:
        arguments = _parse(words)
        if arguments.hydra_help or arguments.shell_completion or arguments.info is not None:
            return _hand_over(words, lambda _: None)
        machine = this_machine()
        asked = jobs(arguments.overrides, arguments.multirun)
        configs = [resolve(load(overrides), machine.gpu, machine.gpus) for overrides in asked]
        if arguments.help or arguments.cfg is not None:
            if arguments.cfg == "job":
                print(f"here this means: {configs[0].summary()}", file=sys.stderr)
            return USAGE if _hand_over(words, lambda _: None) else OK
        plans = [_plan(overrides, config, machine) for overrides, config in zip(asked, configs, strict=True)]
        _check_results_dir(plans[0].config)
    except ConfigError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leave:  # argparse: --version, or a flag that it does not know and has said so
        return leave.code if isinstance(leave.code, int) else OK
    return _run(words, plans, machine)


def _parse(words: list[str]) -> argparse.Namespace:
    """Hydra's own flags, with the ones that would go round the checks refused."""
    parser = get_args_parser()
    parser.prog = "python -m harness"
    arguments = parser.parse_intermixed_args(words)
    refused = {
        "--config-path": arguments.config_path,
        "--config-name": arguments.config_name,
        "--config-dir": arguments.config_dir,
        "--experimental-rerun": arguments.experimental_rerun,
    }
    for flag, value in refused.items():
        if value is not None:
            raise ConfigError(f"{flag}={value} is not used here; settings worth keeping are a file in conf/experiment")
    modes = {"--run": arguments.run, "--multirun": arguments.multirun, "--cfg": arguments.cfg is not None}
    modes |= {"--info": arguments.info is not None, "--shell-completion": arguments.shell_completion}
    chosen = [flag for flag, given in modes.items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} exclude each other; give one")
    if arguments.resolve and arguments.cfg is None and not arguments.help:
        raise ConfigError("--resolve belongs to --cfg; give --cfg job --resolve")
    return arguments


def _plan(overrides: list[str], config: RunConfig, machine: Machine) -> Plan:
    from harness.expand import expand

    return Plan(tuple(overrides), config, tuple(expand(config, machine)))


def _check_results_dir(config: RunConfig) -> None:
    if config.dry_run:
        return
    folder = Path(config.results_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"results_dir={config.results_dir} cannot be made: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"results_dir={config.results_dir} cannot be written to")


def _run(words: list[str], plans: list[Plan], machine: Machine) -> int:
    """Hand every job to the runner through Hydra's loop; the worst exit code counts, and no failure stops the next job."""
    codes: list[int] = []
    by_hash = {plan.config.hash(): plan for plan in plans}

    def task(composed: DictConfig) -> None:
        config = resolve(to_config(composed), machine.gpu, machine.gpus)
        typed = tuple(str(item) for item in HydraConfig.get().overrides.task)
        if len(plans) > 1:
            print(f"job {len(codes) + 1} of {len(plans)}: {' '.join(typed)}", file=sys.stderr)
        code = _one_job(config, by_hash[config.hash()].groups, typed)
        if code == INTERRUPTED:
            raise KeyboardInterrupt  # the one thing that ends the other jobs too
        codes.append(code)

    with tempfile.TemporaryDirectory() as nowhere:
        # A plan leaves no trace: Hydra makes its folders elsewhere, and they go away again.
        elsewhere = [f'hydra.{mode}.dir="{nowhere}"' for mode in ("run", "sweep")] if plans[0].config.dry_run else []
        code = _hand_over([*words, *elsewhere], task)
    if code == INTERRUPTED:
        return code
    return max([code, *codes]) if len(codes) == len(plans) else max([code, *codes, FAILED])


def _one_job(config: RunConfig, groups: tuple[Group, ...], typed: tuple[str, ...]) -> int:
    """The runner's exit code; a failure of the runner itself is told and counts as 1."""
    from harness.runner import RunOptions, run

    options = RunOptions(
        results_dir=Path(config.results_dir),
        dry_run=config.dry_run,
        overrides=typed,
        config_hash=config.hash(),
        peak_tflops=config.peak_tflops.get(config.dtype),
    )
    try:
        code = run(list(groups), options)
        if not config.dry_run and code in (OK, FAILED):
            _show(groups, options.results_dir)
        return code
    except RowError as error:  # of rows that were there before
        print(f"error: {error}", file=sys.stderr)
        return BAD_DATA
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except Exception:  # a fault of this program; the later jobs of the sweep still run
        traceback.print_exc()
        return FAILED


def _show(groups: tuple[Group, ...], results_dir: Path) -> None:
    """What the rows now say of the cases that were asked for, and where to look further."""
    from harness.terminal import for_terminal
    from plots.cells import cells_of, load_rows

    asked = {group.case(kernel, pass_).id for group in groups for kernel in group.kernels for pass_ in group.passes}
    cells = [cell for cell in cells_of(load_rows(results_dir)) if cell["case_id"] in asked]
    if not cells:
        return
    print(for_terminal(cells))
    print(f"rows: {results_dir / 'rows'}   next: python -m harness.report {results_dir}")


def _hand_over(words: Sequence[str], task: Callable[[DictConfig], None]) -> int:
    """Let Hydra's own entry point take the checked words."""
    register()
    with _as_argv(words):
        try:
            hydra.main(config_path=str(CONF), config_name="config", version_base=VERSION_BASE)(task)()
        except SystemExit as leave:
            return leave.code if isinstance(leave.code, int) else OK if leave.code is None else FAILED
        except KeyboardInterrupt:
            return INTERRUPTED
    return OK


@contextmanager
def _as_argv(words: Sequence[str]) -> Iterator[None]:
    """Hydra reads ``sys.argv`` and nothing else."""
    before = sys.argv
    sys.argv = [before[0] if before else "harness", *words]
    try:
        yield
    finally:
        sys.argv = before


if __name__ == "__main__":
    sys.exit(main())
