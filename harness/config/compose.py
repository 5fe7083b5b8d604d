"""Overrides in, filled schema out; and what Hydra and OmegaConf say about bad ones, in the project's words.

The overrides are checked one by one first (``harness.config.overrides``); what only composing can tell - types, files,
interpolations - is translated here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.config import schema
from harness.config.errors import ConfigError
from harness.config.overrides import expected, parse
from harness.config.schema import CONF, Config

VERSION_BASE = "1.3"


def load(overrides: Sequence[str]) -> Config:
    """Compose ``conf/config.yaml`` with the overrides of one job.

    Raises:
        ConfigError: an override that cannot be read, names nothing, has the wrong type, or would be ignored.
    """
    parsed = parse(overrides, multirun=False)
    schema.register()
    try:
        with initialize_config_dir(str(CONF), version_base=VERSION_BASE):
            composed = compose("config", list(overrides), return_hydra_config=True)
        config = to_config(composed)
        _refuse_hydra_settings(composed)
        return config
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(_translate(error, parsed)) from error


def to_config(composed: DictConfig) -> Config:
    """The composed node as the schema's dataclass, interpolations resolved."""
    plain = copy.deepcopy(composed)
    with read_write(plain), open_dict(plain):
        plain.pop("hydra", None)
    found = OmegaConf.to_object(plain)
    if not isinstance(found, Config):
        raise ConfigError(f"the configuration has the form {type(found).__name__}; config.yaml must start from schema.")
    return found


def _refuse_hydra_settings(composed: DictConfig) -> None:
    """No configuration file may turn Hydra's own settings: a launcher set there would be taken and ignored."""
    hydra = composed.hydra
    fixed = {
        "hydra.launcher": str(hydra.launcher.get("_target_")).endswith("BasicLauncher"),
        "hydra.sweeper": str(hydra.sweeper.get("_target_")).endswith("BasicSweeper") and not hydra.sweeper.get("params"),
        "hydra.run.dir": hydra.run.dir == composed.results_dir,
        "hydra.output_subdir": hydra.output_subdir is None,
        "hydra.job.chdir": hydra.job.chdir is False,
    }
    for name, kept in fixed.items():
        if not kept:
            raise ConfigError(f"{name} is changed by a configuration file; Hydra's own settings are fixed here.")


def _translate(error: Exception, overrides: Sequence[Override]) -> str:
    """One or two sentences for an error of Hydra or OmegaConf."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        path = str(cause.full_key or "")
        key = path.partition("[")[0]
        kind = schema.keys().get(key)
        for item in overrides:
            if item.key_or_group == key and kind is not None and item.value() is not None:
                said = str(item.input_line)
                if type(cause).__name__.startswith("Interpolation"):
                    break
                return f"{said} is not allowed; {expected(kind)}."
        first = str(cause.msg if getattr(cause, "msg", None) else cause).splitlines()[0]
        where = f"{path}: " if path else ""
        outer = "" if cause is error else f" ({str(error).splitlines()[0]})"
        return f"{where}{first}{outer}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:1] if "search path" in str(error) else lines)
