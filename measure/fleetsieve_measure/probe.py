"""One streamed request to a server, and what the client saw of it."""

import asyncio
from typing import Any

import aiohttp

from fleetsieve_measure.api_key import api_key
from fleetsieve_measure.client import Client, base_of, completion, headers_of
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.record import Record

_PROMPT = "Say something about the weather."


async def probe(
    url: str,
    *,
    model: str | None = None,
    chat: bool = False,
    max_tokens: int = 16,
    stall_seconds: float = 60.0,
) -> Record:
    """Send one request to the server at `url`, by default to the first model that it lists.

    Raises:
        InputError: the address is none, or no model is given and the server lists none.
    """
    key = api_key()
    name = model or await _first_model(url, key)
    async with Client(url, api_key=key, stall_seconds=stall_seconds) as client:
        seen = await client.send(completion(name, _PROMPT, max_tokens=max_tokens, chat=chat))
    if key and seen.error:
        seen.error = seen.error.replace(key, "***")
    return seen


def run(
    url: str, *, model: str | None = None, chat: bool = False, max_tokens: int = 16
) -> dict[str, Any]:
    """`probe` from outside an event loop, in the form that is printed."""
    return asyncio.run(probe(url, model=model, chat=chat, max_tokens=max_tokens)).probe()


async def _first_model(url: str, key: str | None) -> str:
    address, timeout = f"{base_of(url)}/v1/models", aiohttp.ClientTimeout(total=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers_of(key)) as session,
            session.get(address, allow_redirects=False) as response,
        ):
            listed = (await response.json(content_type=None))["data"]
            return str(listed[0]["id"])
    except aiohttp.ClientConnectorError as error:
        raise InputError(f"nothing answers at {url} ({error.strerror}); start a server") from None
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{url} lists no model ({reason}); give --model NAME") from None
