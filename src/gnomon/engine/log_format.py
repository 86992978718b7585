"""The program's log: plain text, or one JSON object a line with the request's id."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the request that is being answered, for every line that is written meanwhile."""

_PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _WithRequestId(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in line.items() if value is not None})


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = getattr(record, "request_id", None)
        text = super().format(record)
        return f"{text} [{found}]" if found else text


def configure_log(form: str, plain: str = _PLAIN) -> None:
    """Send the program's log to standard error.

    Args:
        form: text or json.
        plain: how a line of text looks.
    """
    handler = logging.StreamHandler()
    handler.addFilter(_WithRequestId())
    handler.setFormatter(_Json() if form == "json" else _Plain(plain))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
