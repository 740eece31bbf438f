"""Who may see the page: this machine by default, others with a token."""

import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from fleetsieve.errors import InputError

TOKEN_VARIABLE = "FLEETSIEVE_WATCH_TOKEN"
_SHORTEST = 16
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate:
    """Lets requests through that name this machine, or that bring the token if there is one."""

    def __init__(self, host: str, token: str | None) -> None:
        """`host` is where the server listens.

        Raises:
            InputError: others reach it and there is no token, or the token is too short.
        """
        if token is not None and len(token) < _SHORTEST:
            raise InputError(
                f"the token has {len(token)} characters; give one of at least {_SHORTEST}"
            )
        if token is None and not is_loopback(host):
            raise InputError(
                f"--host is {host[:60]!r}, which other machines may reach; give --token TOKEN or "
                f"set {TOKEN_VARIABLE}, or leave --host out"
            )
        self._hosts = _LOOPBACK | {host.lower()}
        self._token = token
        # What a browser keeps instead of the token, for as long as the server runs.
        self._session = secrets.token_urlsafe()

    def install(self, app: web.Application) -> None:
        """Guard all that `app` serves."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check(request)
            return await handler(request)

        app.middlewares.append(guard)
        app.on_response_prepare.append(_harden)

    def _check(self, request: web.Request) -> None:
        if self._token is None:
            # A page of another site whose name leads here would name that site.
            if _name(request.host) not in self._hosts:
                raise web.HTTPForbidden(text="Open this page by 127.0.0.1 or localhost.\n")
            return
        cookie = f"fleetsieve-watch-{request.url.port}"
        if _same(request.query.get("token"), self._token):
            # Not to stay in the address bar, the history and the clipboard.
            found = web.HTTPSeeOther(request.path)
            found.set_cookie(cookie, self._session, httponly=True, samesite="Lax")
            raise found
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not (_same(request.cookies.get(cookie), self._session) or _same(bearer, self._token)):
            raise web.HTTPUnauthorized(text="Open this page with ?token=TOKEN.\n")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _name(host: str) -> str | None:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _same(given: str | None, wanted: str) -> bool:
    """Takes the same time whatever is given."""
    given_bytes = (given or "").encode("utf-8", "surrogatepass")
    return hmac.compare_digest(given_bytes, wanted.encode("utf-8", "surrogatepass"))


async def _harden(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
