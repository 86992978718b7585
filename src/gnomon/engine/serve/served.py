"""What the handlers work with: one engine, one model's text side, one set of settings."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

import gnomon
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.serve import conversation, history
from gnomon.engine.serve.errors import ApiError, bad_request, too_late, unavailable
from gnomon.engine.serve.gate import Gate, GateBounds, current_ticket
from gnomon.engine.serve.generation import Engine, Finished, Generation, Tell, generate
from gnomon.engine.serve.metrics import Metrics
from gnomon.engine.serve.options import ServeOptions
from gnomon.engine.serve.parsers import registry
from gnomon.engine.serve.parsers.base import (
    Event,
    OutputParser,
    ReasoningDialect,
    ToolDialect,
)
from gnomon.engine.serve.prompt import ONLY_COUNTED, Prompt, chat_prompt
from gnomon.engine.serve.protocol.chat import Message
from gnomon.engine.serve.protocol.common import SamplingFields, Scores
from gnomon.engine.serve.sampling import GenerationDefaults, Room, output_cap, sampling_params
from gnomon.engine.serve.seal import Seal
from gnomon.engine.serve.store import ResponseStore
from gnomon.engine.serve.structure import Structure, grammar_of
from gnomon.engine.serve.tasks import Tasks
from gnomon.engine.serve.template import ChatTemplate
from gnomon.engine.serve.text_workers import TextWorkers
from gnomon.engine.serve.tokenizer import Tokenizer

Events = AsyncGenerator[list[Event] | Finished, None]

_MOST_PROMPT_SCORES = 1 << 22  # some hundred MiB on their way through both processes


@dataclass(frozen=True)
class Served:
    """One served model.

    Attributes:
        created: unix time of start, which clients see as the model's.
    """

    engine: Engine
    options: ServeOptions
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: GenerationDefaults
    gate: Gate
    store: ResponseStore
    seal: Seal
    workers: TextWorkers = field(default_factory=TextWorkers)
    background: Tasks = field(default_factory=Tasks)
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def load(cls, engine: Engine, options: ServeOptions, folder: Path) -> Served:
        """Read the text side of a checkpoint.

        Raises:
            CheckpointError: a file is missing or unusable.
        """
        return cls(
            engine=engine,
            options=options,
            tokenizer=Tokenizer.load(folder),
            template=ChatTemplate.load(folder),
            defaults=GenerationDefaults.load(folder),
            gate=Gate(
                GateBounds(
                    options.max_open_requests,
                    options.max_requests_per_key,
                    options.max_queued_requests,
                    options.max_queued_per_key,
                )
            ),
            seal=Seal(options.reasoning_key),
            store=ResponseStore(options.max_stored_responses),
        )

    @property
    def reasoning(self) -> ReasoningDialect | None:
        """How the model writes reasoning; None if that is not to be parsed."""
        return registry.reasoning_dialect(self.options.reasoning_parser)

    @property
    def tools(self) -> ToolDialect | None:
        """How the model writes tool calls; None if that is not to be parsed."""
        return registry.tool_dialect(self.options.tool_call_parser)

    @property
    def limits(self) -> Limits:
        """Ends for what a schema leaves open: the server's, else the checkpoint's."""
        options, given = self.options, self.defaults.limits
        return Limits(
            given.text if options.structured_max_text is None else options.structured_max_text,
            given.items if options.structured_max_items is None else options.structured_max_items,
        )

    def admit(self, model: str) -> str:
        """Check that a request for ``model`` can be answered now.

        Returns:
            The name to report.

        Raises:
            ApiError: the engine is not ready, or serves no model of that name.
        """
        require_ready(self.engine)
        if model not in self.options.model_names:
            names = ", ".join(self.options.model_names)
            raise ApiError(
                404,
                f"The model {model!r} does not exist; this server has {names}.",
                param="model",
                code="model_not_found",
            )
        return model

    async def chat(
        self,
        request_id: str,
        fields: SamplingFields,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        cap: tuple[str, int | None],
        wanted: Structure | None = None,
    ) -> Generation:
        """Prepare the generation that answers a conversation.

        Args:
            request_id: unique.
            fields: of the request.
            messages: of the request.
            tools: checked, in the chat shape.
            kwargs: extra template variables.
            cap: name and value of the request's output cap.
            wanted: the form of the answer; None for any.

        Raises:
            ApiError: a message is wrong, the conversation does not fit, or the form cannot be
                enforced.
        """
        deadline = self.deadline()
        async with self.before(deadline):
            prompt = await self.prompt(messages, tools, kwargs, fields.PROMPT)
            return await self.reply(request_id, fields, prompt, tools, cap, wanted, deadline)

    async def reply(
        self,
        request_id: str,
        fields: SamplingFields,
        prompt: Prompt,
        tools: Sequence[Mapping[str, Any]],
        cap: tuple[str, int | None],
        wanted: Structure | None,
        deadline: float | None,
    ) -> Generation:
        """Prepare the generation that answers a rendered conversation.

        Args:
            request_id: unique.
            fields: of the request.
            prompt: from :meth:`prompt`.
            tools: checked, in the chat shape.
            cap: name and value of the request's output cap.
            wanted: the form of the answer; None for any.
            deadline: of the whole request, from :meth:`deadline`.

        Raises:
            ApiError: the conversation does not fit, or the form cannot be enforced.
        """
        parser = OutputParser(
            self.reasoning.parser(prompt.tail) if self.reasoning else None,
            self.tools.parser(conversation.tool_schemas(tools)) if self.tools and tools else None,
        )
        job = self.generation(request_id, fields, prompt.ids, parser, cap, deadline)
        return await self.ruled(job, fields, wanted, prompt.tail, self.reasoning)

    async def ruled(
        self,
        job: Generation,
        fields: SamplingFields,
        wanted: Structure | None,
        tail: str = "",
        reasoning: ReasoningDialect | None = None,
    ) -> Generation:
        """A generation whose answer must have a form.

        Args:
            job: without a form.
            fields: of the request.
            wanted: the form; None for any.
            tail: end of the prompt.
            reasoning: how the answer may reason first; None if it must not.

        Raises:
            ApiError: the form cannot be enforced.
        """
        if wanted is None or wanted.free:
            return job
        for name in ("ignore_eos", "min_tokens"):
            if getattr(fields, name):
                raise bad_request(
                    f"'{name}' cannot be combined with structured output or enforced tool calls.",
                    name,
                )
        parser = self.options.tool_call_parser
        grammar = await self.workers.run(grammar_of, wanted, tail, reasoning, parser, self.limits)
        return replace(job, grammar=grammar)

    async def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        param: str | None = None,
    ) -> Prompt:
        """The prompt of a conversation; arguments as for :meth:`chat`.

        Args:
            messages: of the request.
            tools: checked, in the chat shape.
            kwargs: extra template variables.
            param: the request's field that holds the conversation, where it is to be answered: a
                text that is far too long is refused before it is tokenised. None if its tokens are
                only counted.

        Raises:
            ApiError: a message is wrong, or there are too many.
        """
        where = param or "messages"
        self._require_few("messages", where, len(messages), self.options.max_messages)
        self._require_few("tools", "tools", len(tools), self.options.max_tools)
        turns = conversation.template_messages(messages, self.reasoning)
        history.require_answers(messages)
        most = (self.engine.facts.max_model_len, where, ONLY_COUNTED if param is None else 1)
        return await self.workers.run(
            chat_prompt, self.template, self.tokenizer, turns, tools, kwargs, most
        )

    def deadline(self) -> float | None:
        """When a request that comes now must be answered, by the loop's clock; None for never."""
        most = self.options.request_timeout_s
        return None if most is None else asyncio.get_running_loop().time() + most

    @contextlib.asynccontextmanager
    async def before(self, deadline: float | None) -> AsyncGenerator[None, None]:
        """Do something before a deadline.

        Raises:
            ApiError: it took longer.
        """
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            raise too_late(self.options.request_timeout_s or 0) from None

    def generation(
        self,
        request_id: str,
        fields: SamplingFields,
        prompt_ids: Sequence[int],
        parser: OutputParser,
        cap: tuple[str, int | None],
        deadline: float | None = None,
    ) -> Generation:
        """Prepare a generation from prompt ids.

        Raises:
            ApiError: prompt and answer do not fit.
        """
        limit = self.engine.facts.max_model_len
        fits = Room(limit, self.defaults.max_tokens, fields.PROMPT)
        most = output_cap(cap, len(prompt_ids), fits)
        self._require_few_scores(fields.scores, len(prompt_ids))
        self._require_tokens(fields)
        return Generation(
            id=request_id,
            prompt_ids=prompt_ids,
            sampling=sampling_params(fields, self.defaults, most),
            stops=fields.stop_strings,
            parser=parser,
            hidden=frozenset() if fields.skip_special_tokens is False else self._hidden(),
            tell=Tell(
                stop=bool(fields.include_stop_str_in_output),
                tokens=fields.scores.output is not None,
            ),
            deadline=deadline if deadline is not None else self.deadline(),
        )

    def choices(self, job: Generation, count: int) -> list[Generation]:
        """A generation as the choices of an answer.

        Raises:
            ApiError: there are too many.
        """
        most = self.options.max_choices
        if count > most:
            raise bad_request(f"n is {count}; at most {most} choices are made of a prompt.", "n")
        facts = self.engine.facts
        shares = facts.enable_prefix_caching and len(job.prompt_ids) > facts.block_size
        return job.choices(count, shares_prompt=shares)

    def run(self, job: Generation) -> Events:
        """Run a generation."""
        ticket = current_ticket()
        begin = ticket.begin if ticket is not None else lambda: None
        timeout_s = self.options.request_timeout_s
        return generate(self.engine, self.tokenizer, self.metrics, job, timeout_s, begin)

    def info(self) -> dict[str, Any]:
        """Every effective setting, for attestation."""
        facts = msgspec.to_builtins(self.engine.facts)
        facts.pop("type")  # the message's tag
        return {
            "engine": "gnomon",
            "version": gnomon.__version__,
            "facts": facts,
            "served_model_names": list(self.options.model_names),
            "tool_call_parser": self.options.tool_call_parser,
            "reasoning_parser": self.options.reasoning_parser,
            "reasoning_format": self.options.reasoning_format.value,
            "options": self.options.report(),
            "chat_template_sha256": self.template.sha256,
            "generation_defaults": self.defaults.report(),
            "structured_output_limits": asdict(self.limits),
        }

    def _require_few_scores(self, scores: Scores, prompt_tokens: int) -> None:
        most = self.options.max_logprobs
        if scores.most > most:
            raise bad_request(f"{scores.param} is {scores.most}; at most {most} are told.",
                              scores.param)  # fmt: skip
        numbers = 0 if scores.prompt is None else prompt_tokens * (scores.prompt + 1)
        if numbers > _MOST_PROMPT_SCORES:
            raise bad_request(
                f"The log probabilities of a prompt of {prompt_tokens} tokens are {numbers} "
                f"numbers; at most {_MOST_PROMPT_SCORES} are told. Ask for fewer.",
                scores.param,
            )

    def _require_tokens(self, fields: SamplingFields) -> None:
        named = {
            "stop_token_ids": fields.stop_token_ids or (),
            "logit_bias": map(int, fields.logit_bias or ()),
        }
        for param, ids in named.items():
            highest = max(ids, default=0)
            if highest >= self.tokenizer.size:
                raise bad_request(
                    f"{param} has the token id {highest}, which does not exist; ids are below "
                    f"{self.tokenizer.size}.",
                    param,
                )

    @staticmethod
    def _require_few(what: str, param: str, number: int, most: int) -> None:
        if number > most:
            raise bad_request(f"The request has {number} {what}; at most {most} are taken.", param)

    def _hidden(self) -> frozenset[int]:
        """Special tokens that give no text: all but those the parsers read."""
        markers = [*(self.tools.markers if self.tools else ())]
        markers += self.reasoning.markers if self.reasoning else ()
        read = {self.tokenizer.id_of(marker) for marker in markers}
        return self.tokenizer.special_ids - read


def require_ready(engine: Engine) -> None:
    """Check that the engine can generate.

    Raises:
        ApiError: it is still starting, hangs, or is dead.
    """
    if engine.death is not None:
        raise unavailable(f"The engine is gone: {engine.death}")
    if engine.stall is not None:
        raise unavailable(f"The engine does not answer: {engine.stall}")
    if not engine.is_ready:
        raise unavailable("The engine is still starting; ask /health when it is ready.")
