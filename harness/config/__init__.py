"""The configuration: what a user may ask for, and the one checked object that the rest of the harness works from.

``schema`` holds the fields and their types; ``overrides`` checks what was typed, ``compose`` lets Hydra fill the schema
from ``conf/`` and the overrides and tells errors in the project's words; ``resolve`` fills what was left open and checks
the rules between fields; ``run_config`` is the result: frozen, validated, and free of Hydra.
"""

from __future__ import annotations

from harness.config.errors import ConfigError
from harness.config.run_config import Documents, RunConfig

__all__ = ["ConfigError", "Documents", "RunConfig"]
