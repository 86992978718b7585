"""Where a form is demanded, the answer has it, whole and streamed, from random weights."""

from __future__ import annotations

import json

import jsonschema
import pytest
from tests.contract.asking import Asker, said
from tests.contract.forms import CASES, FORMS, FUNCTIONS


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "name"), CASES, ids=lambda value: value)
def test_an_answer_has_the_form_that_is_demanded(
    asker: Asker, path: str, name: str, stream: bool
) -> None:
    row = FORMS[path][name]
    answer = asker.ask(path, row.change, stream=stream)
    assert answer.status_code == 200, answer.text
    told = said(path, answer, stream=stream)
    assert told.finish[0] not in ("length", "max_tokens", "incomplete")
    calls, content = told.calls.get(0, []), told.content.get(0, "")
    if row.json is None:
        assert len(calls) >= row.least
    assert row.most is None or len(calls) <= row.most
    for function, arguments in calls:
        assert function in row.calls
        schema = FUNCTIONS[function] if row.strict else {"type": "object"}
        jsonschema.validate(json.loads(arguments), schema)
    if row.json is not None and not calls:
        jsonschema.validate(json.loads(content), row.json)
    elif row.least:
        assert not content.strip()
