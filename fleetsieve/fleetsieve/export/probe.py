"""Whether a server completes a token, asked from inside its container."""

from typing import Any

# An HTTP front end may answer happily long after the engine behind it has died. The model is the
# one that the server lists first, which is what it was launched with, whatever it calls it.
_CODE = """\
import json, os, urllib.request as web
key = os.environ.get("VLLM_API_KEY")
head = {"Content-Type": "application/json"}
head.update({"Authorization": "Bearer " + key} if key else {})
def ask(path, body=None):
    with web.urlopen(web.Request("http://127.0.0.1:%d/v1/" + path, body, head), timeout=%d) as page:
        return json.load(page)
model = ask("models")["data"][0]["id"]
body = {"model": model, "prompt": "a", "max_tokens": 1}
ask("completions", json.dumps(body).encode())["choices"][0]
"""
SECONDS = 30
_START, _PERIOD = 10, 30
# A launch that takes so many times what the fleet file expects, and at least this long, hangs.
_PATIENCE, _LEAST_PATIENCE = 4.0, 300.0


def completion(port: int) -> list[str]:
    """A command that succeeds when the server at `port` completes a token."""
    return ["python3", "-c", _CODE % (port, SECONDS)]


def patience(launch_seconds: float) -> int:
    """Seconds that a start may take, where `launch_seconds` are expected."""
    return round(max(_LEAST_PATIENCE, _PATIENCE * launch_seconds))


def probes(port: int, launch_seconds: float) -> dict[str, Any]:
    """Of a Kubernetes container: a token to start and to be ready, its front end to stay alive."""
    asks = {"exec": {"command": completion(port)}, "timeoutSeconds": SECONDS}
    tries = -(-patience(launch_seconds) // _START)
    return {
        "startupProbe": {**asks, "periodSeconds": _START, "failureThreshold": tries},
        "readinessProbe": {**asks, "periodSeconds": _PERIOD, "failureThreshold": 3},
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": port},
            "timeoutSeconds": SECONDS,
            "periodSeconds": _PERIOD,
            "failureThreshold": 3,
        },
    }


def healthcheck(port: int, launch_seconds: float) -> dict[str, Any]:
    """Of a Compose service."""
    return {
        "test": ["CMD", *completion(port)],
        "interval": f"{_PERIOD}s",
        "timeout": f"{SECONDS}s",
        "retries": 3,
        "start_period": f"{patience(launch_seconds)}s",
    }
