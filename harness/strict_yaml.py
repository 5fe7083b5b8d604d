"""The one way in which this project reads YAML of its own form: data only, one document, no key twice, every fault named.

For ``conf/alarms.yaml``, clusters and their rates. Which keys a file may have is its reader's to say; the configuration of runs
is Hydra's, which refuses doubled keys by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class YamlError(ValueError):
    """A file that cannot be read, or is not strict YAML; the message names the file, and the line where there is one."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key may not come twice, at any depth. Plain YAML takes the last one and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for one, _ in node.value:
            key, line = self.construct_object(one, deep=True), one.start_mark.line + 1
            if isinstance(key, list | dict | set):
                raise YamlError(f"line {line}: {key!r} cannot be a key")
            if key in lines:
                raise YamlError(f"line {line}: {key} is there twice, first in line {lines[key]}")
            lines[key] = line
        return super().construct_mapping(node, deep)


def load(path: Path) -> Any:
    """What the file holds; None for an empty one.

    Raises:
        YamlError: no such file, not UTF-8, not YAML, more than plain data, or a key that is there twice.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise YamlError(f"{path.name}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise YamlError(f"{path.name}: not YAML ({where}{error.problem or error.context})") from error
    except yaml.YAMLError as error:
        raise YamlError(f"{path.name}: not YAML ({' '.join(str(error).split())[:200]})") from error
    except YamlError as error:
        raise YamlError(f"{path.name}: {error}") from error
    except (ValueError, RecursionError) as error:  # an impossible date, a number of thousands of digits, brackets without end
        raise YamlError(f"{path.name}: not YAML that can be read ({' '.join(str(error).split())[:200]})") from error
