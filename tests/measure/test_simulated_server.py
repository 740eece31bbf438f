"""The simulated engine as a process: vLLM's dialect, honest times, and a clean end."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

MODEL = "tiny"
ARGUMENTS = ("--model", "qwen3-8b", "--served-model-name", MODEL, "--max-model-len", "2048")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Engine:
    """A server process and its log."""

    def __init__(self, folder, *arguments, port=None, environment=None):
        self.port = port or free_port()
        self.log_path = folder / f"engine-{self.port}.log"
        command = [sys.executable, "-m", "fleetsieve_measure.simulated", "--port", str(self.port)]
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *(arguments or ARGUMENTS)],
                stderr=log,
                process_group=0,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    **(environment or {}),
                },
            )

    @property
    def log(self):
        return self.log_path.read_text()

    def wait_until_ready(self):
        while True:
            assert self.process.poll() is None, self.log
            with contextlib.suppress(ConnectionRefusedError):
                if self.ask("GET", "/health")[0] == 200:
                    return self
            time.sleep(0.02)

    @contextlib.contextmanager
    def connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            yield connection
        finally:
            connection.close()

    def ask(self, method, path, body=None, headers=None):
        """Status and body of the response."""
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        with self.connection() as connection:
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, response.read()

    @contextlib.contextmanager
    def streaming(self, request_id):
        """A long stream of which the first line has been read."""
        body = {"model": MODEL, "prompt": "x", "max_tokens": 2000, "stream": True}
        with self.connection() as connection:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"X-Request-Id": request_id}
            )
            response = connection.getresponse()
            response.readline()
            yield response
            response.close()

    def truth(self, request_id):
        return json.loads(self.ask("GET", "/truth")[1])[request_id]

    def metric(self, name):
        lines = self.ask("GET", "/metrics")[1].decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"vllm:{name}{{")).split()[-1])

    def wait_for_metric(self, name, value):
        deadline = time.monotonic() + 10
        while self.metric(name) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name)}"
            time.sleep(0.02)

    def wait_for_log(self, text):
        while text not in self.log:
            assert self.process.poll() is None, self.log
            time.sleep(0.02)

    def stop(self):
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=10)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("engine"))
    try:
        yield engine.wait_until_ready()
    finally:
        engine.stop()


@pytest.fixture
def start(tmp_path):
    """Starts further engines, which end with the test."""
    engines = []

    def start_engine(*arguments, **options):
        engines.append(Engine(tmp_path, *arguments, **options))
        return engines[-1]

    yield start_engine
    for engine in engines:
        engine.stop()


def test_it_is_ready_when_it_says_so(engine):
    assert engine.ask("GET", "/health") == (200, b"")
    models = json.loads(engine.ask("GET", "/v1/models")[1])
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [(MODEL, 2048)]
    assert "Application startup complete." in engine.log
    # 81,559 MiB · 0.9 less 2 · 8.19e9 bytes, over 36 · 2 · 8 · 128 · 2 bytes, in blocks of 16.
    assert "GPU KV cache size: 410,880 tokens" in engine.log


def test_whole_responses_and_refusals_are_json(engine):
    body = {"model": MODEL, "prompt": "two words", "max_tokens": 3}
    status, answer = engine.ask("POST", "/v1/completions", body)
    assert (status, json.loads(answer)["usage"]["total_tokens"]) == (200, 5)
    status, answer = engine.ask("POST", "/v1/chat/completions", {**body, "model": "other"})
    assert (status, json.loads(answer)["error"]["code"]) == (404, 404)


def test_the_truth_precedes_what_the_client_sees_by_little(engine):
    body = {"model": MODEL, "prompt": "x", "max_tokens": 20, "stream": True}
    with engine.connection() as connection:
        sent = time.monotonic()
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"X-Request-Id": "truthful"}
        )
        response = connection.getresponse()
        reads = []
        while (line := response.readline()) and line != b"data: [DONE]\n":
            if line.startswith(b"data: "):
                reads.append(time.monotonic())
    truth = engine.truth("truthful")
    assert sent <= truth["arrival"] <= truth["first_token"] <= reads[0]
    assert truth["last_token"] <= reads[-1]
    assert (truth["output_tokens"], truth["finish"], len(reads)) == (20, "length", 20)
    # Qwen3-8B on an H100: 16.4 GB per token at 75 % of 3.35 TB/s, and 35 us for each of 36 layers.
    step = 2 * 8.19e9 / (0.75 * 3.35e12) + 36 * 35e-6
    assert truth["first_token"] - truth["arrival"] >= step
    assert truth["last_token"] - truth["arrival"] >= 20 * step


def test_a_client_that_goes_away_frees_its_place(engine):
    with engine.streaming("gone"):
        assert engine.metric("num_requests_running") == 1
    engine.wait_for_metric("num_requests_running", 0)
    assert engine.metric("kv_cache_usage_perc") == 0
    assert engine.truth("gone")["finish"] == "abort"


def test_requests_are_batched(engine):
    with engine.streaming("a"), engine.streaming("b"), engine.streaming("c"):
        assert engine.metric("num_requests_running") == 3
        assert engine.metric("kv_cache_usage_perc") > 0
    engine.wait_for_metric("num_requests_running", 0)


def test_told_to_end_it_ends_at_once_whatever_is_in_flight(start):
    engine = start().wait_until_ready()
    with engine.streaming("cut") as response:
        began = time.monotonic()
        assert engine.stop() == 0
        assert time.monotonic() - began < 5
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
    assert "Traceback" not in engine.log


def test_before_it_is_ready_connections_are_refused(start):
    engine = start(*ARGUMENTS, "--startup-seconds", "60")
    engine.wait_for_log("GPU KV cache size")
    with pytest.raises(ConnectionRefusedError):
        engine.ask("GET", "/health")
    assert engine.stop() == 0
    assert "startup complete" not in engine.log


def test_the_api_key_guards_what_vllm_guards(start):
    engine = start(*ARGUMENTS, "--api-key-env", "ENGINE_KEY", environment={"ENGINE_KEY": "hush"})
    engine.wait_until_ready()
    body = {"prompt": "x", "max_tokens": 1}
    for header in ({}, {"Authorization": "Bearer wrong"}):
        status, answer = engine.ask("POST", "/v1/completions", body, header)
        assert (status, json.loads(answer)) == (401, {"error": "Unauthorized"})
    header = {"Authorization": "Bearer hush"}
    assert engine.ask("POST", "/v1/completions", body, header)[0] == 200
    assert "hush" not in engine.log


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--model", "llama-3.1-70b"), 1, "torch.OutOfMemoryError: CUDA out of memory"),
        (("--model", "gpt-2"), 2, "error: model 'gpt-2' is not simulated; known are"),
        (("--model", "qwen3-8b", "--port", "70000"), 2, "70000 is no port; give one from 1 to"),
        (("--model", "qwen3-8b", "--wings", "2"), 2, "unrecognized arguments: --wings 2"),
        (("--model", "qwen3-8b", "--api-key-env", "NOBODY_SET_THIS"), 2, "which is not set"),
    ],
)
def test_what_cannot_start_says_why(start, arguments, code, says):
    engine = start(*arguments)
    assert engine.process.wait(timeout=20) == code
    assert says in engine.log
    assert "Traceback" not in engine.log


def test_a_port_that_is_taken_is_named(start, engine):
    second = start(port=engine.port)
    assert second.process.wait(timeout=20) == 1
    assert f"cannot listen on 127.0.0.1:{engine.port}" in second.log
    assert "address already in use" in second.log
