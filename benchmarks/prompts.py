"""What a conversation costs in tokens, counted without the server's code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2.sandbox
from tokenizers import Tokenizer


class Counter:
    """Renders a checkpoint's chat template and tokenises, with jinja and tokenizers alone."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        names = ("bos_token", "eos_token")
        self._special = {n: config[n] for n in names if isinstance(config.get(n), str)}
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        self._template = environment.from_string(source)

    def text(self, text: str) -> int:
        """Tokens of a raw prompt."""
        return len(self.ids(text))

    def ids(self, text: str) -> list[int]:
        """Token ids of a raw prompt."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> int:
        """Tokens of a conversation whose text spells no marker.

        Args:
            messages: text content, tool-call arguments as mappings.
            tools: in OpenAI's chat shape.
            variables: further template variables.
        """
        given = {**self._special, **variables, "messages": messages, "tools": tools}
        return self.text(self._template.render(given, add_generation_prompt=True))
