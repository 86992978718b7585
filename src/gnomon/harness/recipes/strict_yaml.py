"""Reading YAML strictly: a duplicate key is a problem, not the loss of its first value."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from yaml.reader import ReaderError

from gnomon.harness.errors import Problem


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that records duplicate keys instead of keeping the last one silently."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.problems: list[Problem] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first_lines: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                continue  # the parent reports unhashable keys
            if key in first_lines:
                self.problems.append(
                    Problem(
                        f"line {line}",
                        f"the key {key!r} is already set at line {first_lines[key]}.",
                        "Keep one of the two.",
                    )
                )
            first_lines.setdefault(key, line)
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str) -> tuple[Any, tuple[Problem, ...]]:
    """Parse one YAML document into plain data.

    Returns:
        The data (None where it cannot be parsed at all) and every problem found.
    """
    try:
        loader = _StrictLoader(text)
    except ReaderError as error:
        where = f"line {text.count(chr(10), 0, error.position) + 1}"
        what = f"the character {text[error.position]!a} is not allowed"
        return None, (Problem(where, f"not readable as YAML: {what}.", "Remove it."),)
    try:
        data = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "recipe"
        what = getattr(error, "problem", None) or str(error)
        problem = Problem(where, f"not readable as YAML: {what}.", "Correct the syntax there.")
        return None, (*loader.problems, problem)
    finally:
        loader.dispose()
    return data, tuple(loader.problems)
