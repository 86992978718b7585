"""Responses kept in memory for ``previous_response_id``, and those that run now."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.engine.serve.background import EventLog
from gnomon.engine.serve.errors import ApiError, bad_request
from gnomon.engine.serve.response_object import ResponseObject

_MOST_BYTES = 256 * 2**20

Item = dict[str, Any]


@dataclass(frozen=True)
class Running:
    """A response that is being generated.

    Attributes:
        response: as it is now.
        events: told so far, of one in the background.
    """

    response: ResponseObject
    events: EventLog | None = None


@dataclass(frozen=True)
class Stored:
    """A finished response.

    Attributes:
        owner: digest of the API key that made it; others do not see it.
        response: the response object.
        inputs: items it answers: the conversation before it.
        nbytes: size of what this response added.
        events: all that was told of it, if it was made in the background.
    """

    owner: str
    response: Item
    inputs: Sequence[Item]
    nbytes: int
    events: EventLog | None = None

    @property
    def items(self) -> Sequence[Item]:
        """The whole conversation: input items and output items."""
        return (*self.inputs, *self.response["output"])


class ResponseStore:
    """A bounded store: beyond its count or 256 MiB, the oldest go.

    Args:
        most: responses kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._nbytes = 0
        self.running: dict[str, Running] = {}

    @property
    def keeps(self) -> bool:
        """Whether anything is stored at all."""
        return self._most > 0

    def put(self, stored: Stored) -> None:
        """Keep a response."""
        self._kept[stored.response["id"]] = stored
        self._nbytes += stored.nbytes
        while self._kept and (len(self._kept) > self._most or self._nbytes > _MOST_BYTES):
            _, oldest = self._kept.popitem(last=False)
            self._nbytes -= oldest.nbytes

    def get(self, response_id: str, owner: str, param: str | None = None) -> Stored:
        """A finished response.

        Raises:
            ApiError: there is none of that id, for that owner, or it still runs.
        """
        if self.running_one(response_id, owner) is not None:
            raise bad_request(
                f"The response {response_id!r} is still being generated; wait for it or cancel it.",
                param,
                "response_in_progress",
            )
        found = self._kept.get(response_id)
        if found is None or found.owner != owner:
            raise _missing(response_id, param)
        return found

    def delete(self, response_id: str, owner: str) -> None:
        """Forget a response.

        Raises:
            ApiError: there is none of that id, for that owner, or it still runs.
        """
        self._nbytes -= self.get(response_id, owner).nbytes
        del self._kept[response_id]

    def running_one(self, response_id: str, owner: str) -> Running | None:
        """A response that runs now; None if none does of that id."""
        found = self.running.get(response_id)
        return found if found is not None and found.response.asked.owner == owner else None


def _missing(response_id: str, param: str | None) -> ApiError:
    return ApiError(
        404,
        f"There is no response {response_id!r}: it was never stored, was deleted, or had to make "
        "room for newer ones.",
        param=param,
        code="response_not_found",
    )
