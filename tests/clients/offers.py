"""Tools that tests offer, and a reply that calls them."""

from __future__ import annotations

from typing import Any

from tests.parsers.replies import TOOLS, block, element, invoke

CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in TOOLS.items()
]
FLAT_TOOLS: Any = [
    {"type": "function", "name": name, "description": name, "parameters": schema}
    for name, schema in TOOLS.items()
]
USER: Any = [{"role": "user", "content": "Book it."}]
CALLS = block(
    invoke("book_room", element("hotel", "Ünïcode 😀 \n"), element("nights", "3")), invoke("now")
)
ARGUMENTS = [{"hotel": "Ünïcode 😀 \n", "nights": 3}, {}]
