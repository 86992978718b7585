"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from gnomon.engine.serve import conversation
from gnomon.engine.serve.errors import bad_request
from gnomon.engine.serve.prompt import ONLY_COUNTED, require_short
from gnomon.engine.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest
from gnomon.engine.serve.served import Served


async def tokenize(served: Served, body: TokenizeRequest) -> JSONResponse:
    """Ids of a text, in which markers count, or of a conversation's prompt."""
    served.admit(body.model or served.options.model_names[0])
    if body.messages is not None:
        tools = conversation.offered_tools(body.tools, None)
        async with served.before(served.deadline()):
            prompt = await served.prompt(body.messages, tools, body.chat_template_kwargs or {})
        ids = prompt.ids
    else:
        text, limit = body.prompt or "", served.engine.facts.max_model_len
        require_short(served.tokenizer, len(text), limit, "prompt", ONLY_COUNTED)
        async with served.before(served.deadline()):
            ids = await served.workers.run(served.tokenizer.encode, text)
    found: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": served.engine.facts.max_model_len,
        "tokens": ids,
        "token_strs": None,
    }
    if body.return_token_strs:
        found["token_strs"] = [
            served.tokenizer.bytes_of(one).decode("utf-8", errors="replace") for one in ids
        ]
    return JSONResponse(found)


async def detokenize(served: Served, body: DetokenizeRequest) -> JSONResponse:
    """Text of ids, markers as they are spelled."""
    served.admit(body.model or served.options.model_names[0])
    size = served.tokenizer.size
    if body.tokens and max(body.tokens) >= size:
        raise bad_request(
            f"Token id {max(body.tokens)} does not exist; ids are below {size}.", "tokens"
        )
    return JSONResponse({"prompt": served.tokenizer.decode(body.tokens)})
