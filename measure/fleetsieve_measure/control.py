"""The few requests that a launch needs: which models are served, one completion, a cache reset."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

# No answer that means something has more bytes.
_LONGEST = 4 << 20


class Control:
    """Asks the server at `url`, with `headers`, `patience` seconds for each request.

    Attributes:
        answered: it has answered a request with success.
        trouble: why the last request that got no good answer got none.
    """

    def __init__(self, url: str, headers: Mapping[str, str], patience: float) -> None:
        self.url = url
        self.answered = False
        self.trouble = "it lists no model, and none is configured"
        self._patience = patience
        self._session = aiohttp.ClientSession(
            headers=headers, connector=aiohttp.TCPConnector(force_close=True)
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def models(self) -> tuple[int, list[str]]:
        """The status of the list of models, 0 without an answer, and the names in it."""
        status, body = await self._ask("GET", "/v1/models")
        models = body.get("data")
        listed = models if isinstance(models, list) else []
        return status, [str(one["id"]) for one in listed if isinstance(one, dict) and "id" in one]

    async def completes(
        self, model: str, prompt: str | list[int] = "Hello", patience: float | None = None
    ) -> bool:
        """Whether `model` completes a token, and counts a prompt of token ids as it was sent."""
        common = {"model": model, "max_tokens": 1}
        status, body = await self._ask(
            "POST", "/v1/completions", {**common, "prompt": prompt}, patience
        )
        if status in (404, 405) and isinstance(prompt, str):
            messages = [{"role": "user", "content": prompt}]
            status, body = await self._ask(
                "POST", "/v1/chat/completions", {**common, "messages": messages}, patience
            )
        if status != 200 or not body.get("choices") or body.get("error"):
            return False
        return isinstance(prompt, str) or _prompt_tokens(body) == len(prompt)

    async def reset_cache(self, path: str) -> bool:
        """Whether the server has emptied its prefix cache; one that is busy may refuse."""
        status, body = await self._ask("POST", path)
        return status == 200 and body.get("success") is not False

    async def page(self, path: str) -> str:
        """The text of a page; empty where there is none."""
        status, text = await self._text("GET", path)
        return text if status == 200 else ""

    async def _ask(
        self, method: str, path: str, body: object = None, patience: float | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object that a request gets; 0 and {} where it gets none."""
        status, text = await self._text(method, path, body, patience)
        answer = _json_object(text)
        if status and (status != 200 or answer.get("error")):
            self.trouble = f"{method} {path} gave {status}: {text[:300]}"
        return status, answer

    async def _text(
        self, method: str, path: str, body: object = None, patience: float | None = None
    ) -> tuple[int, str]:
        """The status and the body that a request gets; 0 and nothing where it gets none."""
        patience = patience or self._patience
        try:
            async with self._session.request(
                method,
                f"{self.url}{path}",
                json=body,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=patience),
            ) as response:
                status, text = response.status, await _text(response)
        except TimeoutError:
            self.trouble = f"{method} {path} got no answer in {patience:g} s"
            return 0, ""
        except (aiohttp.ClientError, OSError) as error:
            self.trouble = f"{method} {path}: {error or type(error).__name__}"
            return 0, ""
        self.answered = self.answered or status == 200
        return status, text


async def _text(response: aiohttp.ClientResponse) -> str:
    """The body, or the first part of one that does not end."""
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > _LONGEST:
            break
    return data.decode(errors="replace")


def _prompt_tokens(body: Mapping[str, Any]) -> object:
    usage = body.get("usage")
    return usage.get("prompt_tokens") if isinstance(usage, dict) else None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
