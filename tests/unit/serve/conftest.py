from __future__ import annotations

import pytest

from gnomon.engine.models.loader import resolve_model
from gnomon.engine.serve.template import ChatTemplate
from gnomon.engine.serve.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve_model("nano"))


@pytest.fixture(scope="session")
def template() -> ChatTemplate:
    return ChatTemplate.load(resolve_model("nano"))
