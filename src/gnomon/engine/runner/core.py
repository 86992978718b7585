"""The engine core: a scheduler, a runner and the facts about what they serve."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.cache.host_pages import HostPages, TransferTotals
from gnomon.engine.cache.host_tier import HostTier
from gnomon.engine.cache.manager import BlockManager
from gnomon.engine.cache.pools import build_pools
from gnomon.engine.errors import AdmissionError, EngineError
from gnomon.engine.grammar.compiler import GrammarCompiler
from gnomon.engine.grammar.vocabulary import WRITTEN_MARKERS, token_bytes
from gnomon.engine.memory import layer_pages
from gnomon.engine.models.loader import fingerprint, load_model, resolve_model
from gnomon.engine.models.weights import weight_summary
from gnomon.engine.options import EngineOptions, LoadFormat
from gnomon.engine.out_of_memory import memory_told
from gnomon.engine.runner.constraints import Constraints
from gnomon.engine.runner.facts import cache_salt, gather_facts
from gnomon.engine.runner.messages import EngineFacts, EngineStats, TokenOutput
from gnomon.engine.runner.queue_clock import QueueClock
from gnomon.engine.runner.runner import ModelRunner, StepResult
from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.scheduler.config import SchedulerConfig
from gnomon.engine.scheduler.request import Request, SamplingParams
from gnomon.engine.scheduler.scheduler import Scheduler
from gnomon.engine.scheduler.step import Chunk, Progress
from gnomon.engine.startup import Startup, prepare


class EngineCore:
    """Requests in, tokens out, one step at a time. Single-threaded and deterministic."""

    def __init__(
        self,
        startup: Startup,
        runner: ModelRunner,
        facts: EngineFacts,
        compiler: GrammarCompiler,
        host: HostPages | None = None,
    ) -> None:
        options = startup.options
        self.host = host
        self.tier = None
        if host is not None:
            self.tier = HostTier(host.num_slots, options.host_cache_mode.value)
        self.facts = facts
        self.runner = runner
        self._vocab_size = startup.config.vocab_size
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=options.max_num_batched_tokens,
                max_model_len=startup.plan.max_model_len,
                eos_token_ids=frozenset(startup.config.eos_token_ids),
            ),
            BlockManager(
                startup.plan.num_blocks,
                startup.config.block_size,
                salt=cache_salt(facts, runner.pools),
                enable_prefix_caching=options.enable_prefix_caching,
                tier=self.tier,
            ),
        )
        self.constraints = Constraints(compiler, startup.config.eos_token_ids)
        self._queue = QueueClock()
        self._prompt_scores: dict[str, list[Logprobs]] = {}
        self._steps = 0

    @classmethod
    def start(cls, options: EngineOptions) -> EngineCore:
        """Load the model, build the pools and run a real forward.

        Raises:
            StartupRefused: the combination cannot run; carries every reason.
            CheckpointError: the checkpoint cannot be loaded.
            NumericsError: the first forward gave logits that are not finite.
            OutOfMemory: the weights, the caches or the first step did not fit.
        """
        path = resolve_model(options.model)
        startup = prepare(path, options)
        config = startup.config
        compiler = GrammarCompiler(
            lambda: token_bytes(path, config.vocab_size, WRITTEN_MARKERS), config.eos_token_ids
        )
        plan, device = startup.plan, startup.device
        with memory_told("loading the weights", plan, device):
            model = load_model(path, config, options)
        with memory_told("allocating the caches", plan, device):
            pools = build_pools(layer_pages(config, options), plan.num_blocks, device.kind)
            host = HostPages(pools, plan.host_blocks) if plan.host_blocks else None
        backend = ReferenceBackend()
        runner = ModelRunner(
            model, pools, backend, config.block_size, options.seed, config.eos_token_ids
        )
        with memory_told("running the first step", plan, device):
            runner.warm_up(min(options.max_num_batched_tokens, plan.max_model_len) - 1)
        facts = gather_facts(
            config=config,
            options=options,
            device=startup.device,
            pools=pools,
            max_model_len=startup.plan.max_model_len,
            fingerprint=fingerprint(path, weights=options.load_format is not LoadFormat.DUMMY),
            weights=weight_summary(config, model.weights, options.load_format),
            host=host,
            compute_dtype=str(model.dtype).removeprefix("torch."),
            backend=backend.name,
        )
        return cls(startup, runner, facts, compiler, host)

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` would have anything to do."""
        return self.scheduler.has_work

    @property
    def compiling(self) -> int:
        """Requests that wait for a grammar; see :meth:`start_compiled`."""
        return self.constraints.compiling

    def add(
        self,
        request_id: str,
        prompt_ids: tuple[int, ...],
        sampling: SamplingParams,
        grammar: str | None = None,
    ) -> None:
        """Queue a request; one with a grammar is queued once that is compiled.

        Raises:
            AdmissionError: it can never run; the message says why.
        """
        if prompt_ids and not 0 <= min(prompt_ids) <= max(prompt_ids) < self._vocab_size:
            raise AdmissionError(
                f"the prompt has a token id outside 0 to {self._vocab_size - 1}, the model's "
                "vocabulary; was it made with another tokenizer?"
            )
        named = [*sampling.stop_token_ids, *(token_id for token_id, _ in sampling.logit_bias)]
        adjusts = sampling.logit_bias or sampling.min_tokens
        if adjusts and not all(0 <= token_id < self._vocab_size for token_id in named):
            raise AdmissionError(
                f"logit_bias or stop_token_ids has a token id outside 0 to {self._vocab_size - 1}"
            )
        if grammar is not None and sampling.min_tokens:
            raise AdmissionError("min_tokens cannot be combined with structured output")
        if request_id in self.constraints:
            raise AdmissionError(f"a request with the id {request_id!r} is already running")
        request = Request(id=request_id, prompt_ids=prompt_ids, sampling=sampling)
        if grammar is None:
            self.scheduler.add(request)
        else:
            self.constraints.expect(request, grammar)
        self._queue.arrive(request_id)

    def start_compiled(self, *, wait: bool = False) -> list[tuple[str, EngineError]]:
        """Queue the requests whose grammars are compiled by now; end those too slow to follow.

        Args:
            wait: for the first of them.

        Returns:
            Ids of requests that can never run, or not any longer, and why.
        """
        refused: list[tuple[str, EngineError]] = []
        for request_id, slow in self.constraints.take_slow():
            self.abort(request_id)
            refused.append((request_id, slow))
        for request, error in self.constraints.ready(wait=wait) if self.compiling else ():
            try:
                if error is not None:
                    raise error
                self.scheduler.add(request)
            except AdmissionError as reason:
                self._forget(request.id)
                refused.append((request.id, reason))
        return refused

    def abort(self, request_id: str) -> bool:
        """End a request and free its blocks now; False if it is not live."""
        waiting = self._forget(request_id)
        return self.scheduler.abort(request_id) or waiting

    def _forget(self, request_id: str) -> bool:
        self._queue.forget(request_id)
        self._prompt_scores.pop(request_id, None)
        return self.constraints.forget(request_id) is not None

    def step(self) -> tuple[TokenOutput, ...]:
        """Run one step; returns the requests that gained a token."""
        step = self.scheduler.schedule()
        self._move_pages()
        if not step.chunks:
            return ()
        self._queue.begin(chunk.request.id for chunk in step.chunks)
        result = self.runner.run(step.chunks, self.constraints)
        self._keep_prompt_scores(step.chunks, result)
        self._steps += 1
        outputs = tuple(
            self._output(gained, result) for gained in self.scheduler.commit(step, result.tokens)
        )
        self._move_pages()
        for output in outputs:
            if output.finish_reason is not None:
                self.constraints.forget(output.id)
        return outputs

    def _keep_prompt_scores(self, chunks: Sequence[Chunk], result: StepResult) -> None:
        """Add up a prompt's scores over its chunks; a preempted prompt starts again."""
        for chunk in chunks:
            if chunk.start == 0:
                self._prompt_scores.pop(chunk.request.id, None)
            if chunk.request.id in result.prompt_logprobs:
                scores = self._prompt_scores.setdefault(chunk.request.id, [])
                scores += result.prompt_logprobs[chunk.request.id]

    def _output(self, gained: Progress, result: StepResult) -> TokenOutput:
        request = gained.request
        scores = result.logprobs.get(request.id)
        return TokenOutput(
            id=request.id,
            token_ids=() if gained.token_id is None else (gained.token_id,),
            num_cached=request.num_cached,
            finish_reason=gained.finish_reason,
            queue_s=self._queue.take(request.id),
            logprobs=() if scores is None else (scores,),
            prompt_logprobs=tuple(self._prompt_scores.pop(request.id, ())),
        )

    def flush_cache(self, *, host: bool = False) -> int:
        """Forget every block that no request holds; returns how many.

        With a host tier their content is kept there, unless ``host`` forgets that too.
        """
        flushed = self.scheduler.blocks.flush(host=host)
        self._move_pages()
        return flushed

    def _move_pages(self) -> None:
        """Run the host tier's transfers; pins are released also if one fails."""
        if self.tier is None or self.host is None:
            return
        transfers = self.tier.take()
        try:
            self.host.run(transfers)
        finally:
            self.tier.done(transfers)

    def stats(self) -> EngineStats:
        """Counters since start and gauges now."""
        scheduler, pool = self.scheduler, self.scheduler.blocks.pool
        counters = scheduler.counters
        moved = TransferTotals() if self.host is None else self.host.totals
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            prefix_queries_total=counters.prefix_queries,
            prefix_hits_total=counters.prefix_hits,
            preemptions_total=counters.preemptions,
            steps_total=self._steps,
            prompt_tokens_total=counters.prompt_tokens,
            generation_tokens_total=counters.generation_tokens,
            sanitised_values_total=self.runner.sanitised_values(),
            host_blocks_total=0 if self.tier is None else self.tier.num_slots,
            host_blocks_used=0 if self.tier is None else self.tier.num_used,
            host_loaded_tokens_total=self._loaded_tokens(),
            host_evictions_total=0 if self.tier is None else self.tier.counters.evicted,
            host_saved_bytes_total=moved.saved_bytes,
            host_loaded_bytes_total=moved.loaded_bytes,
            host_save_seconds_total=moved.save_s,
            host_load_seconds_total=moved.load_s,
        )

    def _loaded_tokens(self) -> int:
        """Tokens whose K, V and index keys came back from host memory."""
        blocks = 0 if self.tier is None else self.tier.counters.loaded
        return blocks * self.scheduler.blocks.block_size
