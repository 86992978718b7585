"""The checkpoint's chat template, in jinja's sandbox."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gnomon.engine.errors import CheckpointError

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
"""Template variables the server sets; ``chat_template_kwargs`` may not."""


class TemplateRefused(Exception):
    """The template cannot render these messages; the message is the template's own."""


class ChatTemplate:
    """A compiled template.

    Attributes:
        sha256: of the source, for attestation.
        variables: names that the template reads.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile.

        Args:
            source: jinja text.
            special_tokens: variables such as bos_token and eos_token.

        Raises:
            CheckpointError: the source is no jinja template.
        """
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
            self.variables = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template does not compile: {error}") from error

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate:
        """Read chat_template.jinja, else the template in tokenizer_config.json.

        Raises:
            CheckpointError: there is none, or it does not compile.
        """
        path = folder / "tokenizer_config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.exists() else config.get("chat_template")
        if not isinstance(source, str):
            raise CheckpointError(f"{folder} has no chat_template.jinja; chat cannot be served")
        return cls(source, {n: s for n in ("bos_token", "eos_token") if (s := _text(config, n))})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        extra: Mapping[str, Any],
    ) -> str:
        """The prompt of a conversation, up to where the model takes over.

        Args:
            messages: in OpenAI's chat shape, tool-call arguments as mappings.
            tools: function tools in OpenAI's chat shape, or None.
            extra: further variables, ``chat_template_kwargs``.

        Raises:
            TemplateRefused: the template raised, or failed on these values.
        """
        variables = {
            **self._special_tokens,
            **extra,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": True,
        }
        try:
            return self._template.render(variables)
        except RecursionError:
            raise
        except Exception as error:  # a template is a program: it may fail in any way
            raise TemplateRefused(str(error)) from error


def _text(config: Mapping[str, Any], name: str) -> str | None:
    """A special token, which tokenizer_config.json spells as a string or an object."""
    value = config.get(name)
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """JSON in key order, unescaped, as models were trained on it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
