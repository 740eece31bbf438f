"""The API key that requests are sent with: that of the environment."""

import os

API_KEYS = ("FLEETSIEVE_API_KEY", "OPENAI_API_KEY")


def api_key_name() -> str | None:
    """The first variable of `API_KEYS` that is set and not empty."""
    return next((name for name in API_KEYS if os.environ.get(name)), None)


def api_key() -> str | None:
    """The API key of the environment, if it has one."""
    name = api_key_name()
    return os.environ[name] if name else None
