"""A server with the command line of `vllm serve` whose faults are told in FAKE, as JSON."""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WISH = json.loads(os.environ.get("FAKE", "{}"))
MODEL = WISH.get("served", sys.argv[2])
PORT = int(sys.argv[sys.argv.index("--port") + 1])
ASKED = {"models": 0, "completions": 0}


class Handler(BaseHTTPRequestHandler):
    """Answers /health always, and the rest as wished."""

    def do_GET(self):
        if self.path == "/health":
            return self.answer(200, {})
        if not self.allowed():
            return self.answer(401, {"error": "Unauthorized"})
        ASKED["models"] += 1
        listed = WISH.get("listed", True) and self.discovered()
        return self.answer(200, {"data": [{"id": MODEL}] if listed else []})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        if not self.allowed():
            return self.answer(401, {"error": "Unauthorized"})
        if self.path.startswith("/reset_prefix_cache"):
            return self.answer(200, WISH.get("reset", {}))
        if self.path == "/v1/completions" and WISH.get("chat_only"):
            return self.answer(404, {"error": "Not Found"})
        ASKED["completions"] += 1
        if ASKED["completions"] > WISH.get("completes", 10**9):
            return self.break_down()
        if body["model"] != MODEL or not self.discovered():
            return self.answer(404, {"error": f"model {body['model']} does not exist"})
        prompt = body.get("prompt", "")
        tokens = len(prompt) + WISH.get("bos", 0)
        usage = {"prompt_tokens": tokens, "completion_tokens": 1}
        return self.answer(200, {"choices": [{"text": "x"}], "usage": usage})

    def break_down(self):
        for line in WISH.get("last_words", []):
            print(line, flush=True)
        how = WISH.get("break", "500")
        if how == "exit":
            os._exit(1)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(60)
        return self.answer(500, {"error": "EngineCore encountered an issue"})

    def discovered(self):
        """A front end comes up before the engine behind it."""
        return ASKED["models"] > WISH.get("list_after", 0)

    def allowed(self):
        return self.headers["Authorization"] == WISH.get("authorization")

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_request(self, code="-", size="-"):
        pass


def number_of_this_launch():
    """Counted from 1, in a file that all launches share."""
    if "count" not in WISH:
        return 1
    with Path(WISH["count"]).open("a+") as file:
        file.write("x")
        file.flush()
        return Path(WISH["count"]).stat().st_size


def main():
    number = number_of_this_launch()
    print(*WISH.get("first_words", []), sep="\n", flush=True)
    if WISH.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "grandchild" in WISH:
        stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        Path(WISH["grandchild"]).write_text(
            str(subprocess.Popen([sys.executable, "-c", stubborn]).pid)
        )
    if sizes := WISH.get("kv_sizes"):
        print(f"INFO GPU KV cache size: {sizes[min(number, len(sizes)) - 1]:,} tokens", flush=True)
    if number <= WISH.get("failures", 0):
        for line in WISH.get("last_words", []):
            print(line, flush=True)
        if "fail_after" in WISH:
            time.sleep(WISH["fail_after"])
        sys.exit(1)
    if "spans" in WISH:
        log_span("begin")
    time.sleep(WISH.get("bind_after", 0))
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    if "spans" in WISH:
        log_span("end")
    server.serve_forever()


def log_span(word):
    with Path(WISH["spans"]).open("a") as file:
        file.write(f"{word}\n")


main()
