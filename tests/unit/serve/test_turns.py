"""Which items of a long conversation may go, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon.engine.serve.responses_input import messages_of
from gnomon.engine.serve.turns import droppable

Item = dict[str, Any]


def items(letters: str) -> list[Item]:
    """u user, s system, a assistant, r reasoning, and calls: C (one) or D (two), answered o."""
    found: list[Item] = []
    waiting: list[str] = []
    for at, letter in enumerate(letters):
        match letter:
            case "u" | "s" | "a":
                role = {"u": "user", "s": "system", "a": "assistant"}[letter]
                found.append({"role": role, "content": f"{at}"})
            case "r":
                found.append({"type": "reasoning", "content": [{"text": f"{at}"}]})
            case "o":
                name = waiting.pop(0)
                found.append({"type": "function_call_output", "call_id": name, "output": "x"})
            case _:
                for n in range(1 if letter == "C" else 2):
                    waiting.append(f"c{at}.{n}")
                    found.append({"type": "function_call", "call_id": waiting[-1], "name": "f"})
    return found


@pytest.mark.parametrize(
    ("letters", "groups"),
    [
        ("u", []),
        ("su", []),
        ("uau", [[0, 1]]),
        ("suaua", [[1, 2]]),
        ("uasuau", [[0, 1], [3, 4]]),
        ("uuau", [[0, 1, 2]]),
        ("uaua", [[0, 1]]),
        ("auau", [[0], [1, 2]]),
        ("uCou", [[0, 1, 2]]),
        ("urCorCo", [[1, 2, 3]]),
        ("uaurCorCoCo", [[0, 1], [3, 4, 5], [6, 7, 8]]),
        ("uDooDooa", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ("sss", []),
    ],
)
def test_the_oldest_turns_go_first_and_then_steps_of_the_last(
    letters: str, groups: list[list[int]]
) -> None:
    assert droppable(items(letters)) == groups


TURN = st.builds(
    lambda steps, end: "u" + "".join(steps) + end,
    st.lists(st.sampled_from(["Co", "rCo", "Doo", "raCo", "a", "s"]), max_size=4),
    st.sampled_from(["", "a", "ra"]),
)


@given(st.lists(TURN, min_size=1, max_size=5).map("".join))
def test_what_is_left_is_a_valid_conversation_that_ends_alike(letters: str) -> None:
    every = items(letters)
    groups = droppable(every)
    flat = [at for group in groups for at in group]
    assert len(set(flat)) == len(flat)
    last_user = max(at for at, item in enumerate(every) if item.get("role") == "user")
    assert last_user not in flat
    assert all(every[at].get("role") != "system" for at in flat)
    assert len(every) - 1 not in flat
    for number in range(len(groups) + 1):
        gone = {at for group in groups[:number] for at in group}
        left = [item for at, item in enumerate(every) if at not in gone]
        assert messages_of("Be brief.", left)[0].content == "Be brief."
