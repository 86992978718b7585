"""Golden acceptance curves: how many tokens a verification really yields, by draft and K.

Load is measured with forced acceptance so that engines are compared at the same draft quality; the
length then has to be the published one for this target, this head, this mode and this K. A recipe
names those four and this module looks the length up: copied literals were wrong, missing or given
to another draft in at least four public recipes (InferenceX #2816, #2734, #2810, #2487).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gnomon.harness.errors import HarnessError, Problem
from gnomon.harness.recipes.model_spec import Revision, SpeculationSpec, Thinking
from gnomon.harness.recipes.quantities import Unknown, is_unknown
from gnomon.harness.recipes.strict_yaml import read_yaml

TOLERANCE = 0.03
"""Largest difference between a realised and a golden acceptance length, in tokens."""

Length = Annotated[float, Field(ge=1)]
Lengths = dict[Annotated[int, Field(ge=1, le=16)], Length]
Bounds = tuple[Length, Length]


class GoldenError(HarnessError):
    """A file of golden curves cannot be used."""


class Protocol(BaseModel):
    """How a curve was measured.

    Attributes:
        prompts: the set.
        output_tokens: most tokens of an answer.
        temperature: of sampling.
        top_p: of sampling.
        top_k: of sampling, None for none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompts: str
    output_tokens: int
    temperature: float
    top_p: float
    top_k: int | None = None


class GoldenFile(BaseModel):
    """The curves of one target and one draft head.

    Attributes:
        target: family of the model, as `ModelSpec.family` says it.
        draft: hub id of the head.
        draft_revision: of its checkpoint.
        sampling: how drafts are sampled and judged; another method is another curve.
        n: prompts behind each length.
        interval: 95 % interval of each length, by mode and K.
        protocol: how it was measured.
        source: public place of the numbers.
        curves: acceptance length by mode and K.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    draft: str
    draft_revision: Revision
    sampling: str = "default"
    n: int | Unknown
    interval: dict[Thinking, dict[int, Bounds]] | Unknown
    protocol: Protocol | Unknown
    source: Annotated[str, Field(min_length=8)]
    curves: dict[Thinking, Lengths]

    @model_validator(mode="after")
    def _lengths_are_possible(self) -> Self:
        for mode, lengths in self.curves.items():
            for tokens, length in lengths.items():
                if length > tokens + 1:
                    raise ValueError(
                        f"{mode}, K = {tokens}: {length} tokens, but a step yields at most "
                        f"{tokens + 1}; correct the number"
                    )
        return self


@dataclass(frozen=True)
class GoldenRow:
    """One point of a curve, with what it rests on.

    Attributes:
        target: family of the model.
        draft: hub id of the head.
        draft_revision: of its checkpoint, or ``unknown``.
        thinking: mode of the chat template.
        sampling: method of the curve.
        tokens: K, drafts of one step.
        length: tokens a step yields, the target's own included.
        n: prompts, or ``unknown``.
        interval: 95 %, or ``unknown``.
        source: public place.
    """

    target: str
    draft: str
    draft_revision: str
    thinking: Thinking
    sampling: str
    tokens: int
    length: float
    n: int | Unknown
    interval: Bounds | Unknown
    source: str


@dataclass(frozen=True)
class GoldenTable:
    """All curves that a recipe may refer to."""

    files: tuple[GoldenFile, ...] = ()

    def rows(self) -> Iterable[GoldenRow]:
        """Every point of every curve."""
        for file in self.files:
            for thinking, lengths in file.curves.items():
                for tokens in lengths:
                    yield _row(file, thinking, tokens)

    def find(self, target: str | None, spec: SpeculationSpec) -> GoldenRow | Problem:
        """The point for a target and its drafts, or why there is none.

        Args:
            target: family of the served model.
            spec: the recipe's drafts.
        """
        path = "speculation"
        if target is None:
            return Problem(
                "model.family",
                "the model has no family, so no golden curve can belong to it.",
                "Set model.family to the target of a file in golden/, or acceptance to real.",
            )
        own = [file for file in self.files if file.target == target]
        same = [
            file for file in own if file.draft == spec.draft.path and file.sampling == spec.sampling
        ]
        if not same:
            known = sorted({f"{f.draft} ({f.sampling})" for f in own}) or ["none"]
            return Problem(
                f"{path}.draft.path",
                f"there is no golden curve of {spec.draft.path} ({spec.sampling}) for {target}.",
                f"Choose one of: {', '.join(known)}; or measure the curve first.",
            )
        if len(same) > 1:
            return Problem(
                path,
                f"{len(same)} files claim the curve of {spec.draft.path} for {target}.",
                "Keep one of them.",
            )
        file = same[0]
        if _differ(file.draft_revision, spec.draft.revision):
            return Problem(
                f"{path}.draft.revision",
                f"the curve was measured on revision {file.draft_revision}, not "
                f"{spec.draft.revision}.",
                "Use that revision, or measure the curve of this one.",
            )
        lengths = file.curves.get(spec.thinking)
        if lengths is None:
            return Problem(
                f"{path}.thinking",
                f"the curve of {spec.draft.path} has no {spec.thinking} column.",
                f"Choose one of: {', '.join(file.curves)}.",
            )
        if spec.tokens not in lengths:
            return Problem(
                f"{path}.tokens",
                f"the curve of {spec.draft.path} ends at K = {max(lengths)}.",
                f"Choose one of: {', '.join(map(str, sorted(lengths)))}.",
            )
        return _row(file, spec.thinking, spec.tokens)


def _differ(left: str, right: str) -> bool:
    """Whether two revisions are known to differ; an abbreviation equals what it begins."""
    if is_unknown(left) or is_unknown(right):
        return False
    return not (left.startswith(right) or right.startswith(left))


def _row(file: GoldenFile, thinking: Thinking, tokens: int) -> GoldenRow:
    interval: Bounds | Unknown = "unknown"
    if isinstance(file.interval, dict):
        interval = file.interval.get(thinking, {}).get(tokens, "unknown")
    return GoldenRow(
        target=file.target,
        draft=file.draft,
        draft_revision=file.draft_revision,
        thinking=thinking,
        sampling=file.sampling,
        tokens=tokens,
        length=file.curves[thinking][tokens],
        n=file.n,
        interval=interval,
        source=file.source,
    )


def golden_folder(recipe: Path) -> Path | None:
    """The ``golden`` folder beside a recipe or beside one of the folders it lies in."""
    for folder in recipe.resolve().parents:
        if (folder / "golden").is_dir():
            return folder / "golden"
    return None


def load_golden(folder: Path | None) -> GoldenTable:
    """Read every curve of a folder.

    Raises:
        GoldenError: a file is not readable as a golden curve; names the file and the field.
    """
    paths: Sequence[Path] = sorted(folder.glob("*.yaml")) if folder is not None else ()
    return GoldenTable(tuple(_load(path) for path in paths))


def _load(path: Path) -> GoldenFile:
    data, problems = read_yaml(path.read_text(encoding="utf-8"))
    if problems:
        raise GoldenError(f"{path}: {problems[0]}")
    try:
        return GoldenFile.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise GoldenError(f"{path}: {where}: {first['msg']}") from None
