"""Whether the calls and the tool results of a history belong together."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon.engine.serve.errors import bad_request, missing
from gnomon.engine.serve.protocol.chat import Message


class CallLedger:
    """Calls that wait for their results.

    Assistant messages in a row are one turn; once a result has come, the others must follow before
    anybody else speaks.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}  # call id to the place of its call
        self._answered: set[str] = set()
        self._answering = False

    def call(self, call_id: str | None, where: str, member: str = "id") -> None:
        """The assistant calls.

        Raises:
            ApiError: the call has no id, or one that is taken.
        """
        if not call_id:
            raise missing(f"{where}.{member}", f"{where}.{member} is missing.")
        if call_id in self._waiting:
            raise bad_request(
                f"{where}.{member} {call_id!r} is the id of another call of this turn too.",
                f"{where}.{member}",
            )
        self._waiting[call_id] = where
        self._answered.discard(call_id)

    def result(self, call_id: str, where: str, member: str = "tool_call_id") -> None:
        """A tool answers.

        Raises:
            ApiError: no call has that id, or it was answered before.
        """
        if call_id not in self._waiting:
            why = "was answered before" if call_id in self._answered else "is no call before it"
            raise bad_request(f"{where}.{member} {call_id!r} {why}.", f"{where}.{member}")
        del self._waiting[call_id]
        self._answered.add(call_id)
        self._answering = bool(self._waiting)

    def speak(self, where: str, *, assistant: bool) -> None:
        """Somebody speaks, or with ``where`` empty the history ends.

        Raises:
            ApiError: a call has no result.
        """
        if not self._waiting or (assistant and not self._answering):
            return
        call_id, place = next(iter(self._waiting.items()))
        before = f"before {where}" if where else "at the end"
        raise bad_request(
            f"{place} has no result: a tool message that answers {call_id!r} is missing {before}.",
            where or place,
        )


def require_answers(messages: Sequence[Message]) -> None:
    """Check that every call has its result and every result its call.

    Raises:
        ApiError: names the message.
    """
    ledger = CallLedger()
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if message.role == "tool":
            if message.tool_call_id:
                ledger.result(message.tool_call_id, where)
            continue
        ledger.speak(where, assistant=message.role == "assistant")
        for number, call in enumerate(message.tool_calls or ()):
            ledger.call(call.id, f"{where}.tool_calls[{number}]")
    ledger.speak("", assistant=False)
