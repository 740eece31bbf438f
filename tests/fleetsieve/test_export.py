"""Exports launch what was measured, as often as was decided, in files that their tools accept."""

import asyncio
import copy
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import compose_spec
import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve.cli import main
from fleetsieve.export.document import written
from fleetsieve.export.names import names
from fleetsieve.fleet import Fleet
from fleetsieve.launches import launch_of
from fleetsieve_measure.server import LaunchFailed, Server

HOSTILE = "Чат <script>$(touch pwned) `id` 'q' \"d\" ${X} #: {{a}} \\ " + "x" * 80
FLEET = {
    "fleet": {"gpus": 12, "gpus_per_node": 8},
    "engine": {
        "kind": "vllm",
        "model": "some/model$(touch pwned)",
        "args": {
            "max-model-len": 4096,
            "enforce-eager": True,
            "swap_space": None,
            "hf-overrides": {"a": "$HOME '\"", "b": [1]},
            "allowed-origins": ["a b", "1e3"],
        },
        "env": {"OMP_NUM_THREADS": "1e3", "WEIRD": "$HOME `id` \"'\n{{x}}", "HF_TOKEN": "hf_leak"},
    },
    "configs": [
        {"name": "tp4", "gpus": 4, "args": {"tensor-parallel-size": 4, "max-model-len": 2048}},
        {"name": "tp1", "gpus": 1},
    ],
    "workloads": [
        {"name": "chat", "demand": 4.0, "arrivals": "poisson"},
        {"name": HOSTILE, "demand": 2.0, "arrivals": {"concurrency": True}},
    ],
}
ENDS = {"conservative": 0.6, "expected": 0.606, "optimistic": 0.612}


def row(workload, config, replicas, gpus, load=2.5):
    return {
        "workload": workload, "config": config, "replicas": replicas, "gpus": replicas * gpus,
        "load": load, "measured": True, "capacity": {"lower": 1.5, "mean": 1.6, "upper": 2.0},
    }  # fmt: skip


DECISION = {
    "schema": "fleetsieve.decision/1", "objective": "max-min", "gap": 0.01, "tolerance": 0.02,
    "confidence": 0.95, "certified": True, "stop_reason": "gap", "measurements": 3,
    "gpu_seconds": 900.0, "gpus": 12, "gpus_used": 11, "value": ENDS,
    "workloads": [
        {"name": w["name"], "demand": w["demand"], "feasible": True, "fulfillment": ENDS,
         "served": ENDS}
        for w in FLEET["workloads"]
    ],
    "allocation": [row("chat", "tp1", 2, 1), row("chat", "tp4", 1, 4), row(HOSTILE, "tp4", 1, 4),
                   row(HOSTILE, "tp1", 1, 1, load=64.0)],
    "within_noise": [], "next": [],
}  # fmt: skip
FORMATS = ("vllm", "compose", "kubernetes", "dynamo", "llm-d")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write()
    return tmp_path


def write(decision=DECISION, fleet=FLEET):
    Path("d.json").write_text(json.dumps(decision))
    Path("f.yaml").write_text(json.dumps(fleet))


def changed(data, **values):
    return {**copy.deepcopy(data), **values}


def engine(**values):
    return changed(FLEET, engine={**FLEET["engine"], **values})


def exported(to, *options):
    """The files that an export to a folder writes, by name."""
    shutil.rmtree("out", ignore_errors=True)
    argv = ["export", "d.json", "--fleet", "f.yaml", "--to", to, "-o", "out/", *options]
    assert main(argv) == 0
    return {path.name: path.read_text() for path in sorted(Path("out").iterdir())}


def documents(to, *options):
    return [d for text in exported(to, *options).values() for d in yaml.safe_load_all(text)]


def refusal(capsys, *argv):
    capsys.readouterr()
    assert main(["export", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def refused(capsys, to="vllm", decision=DECISION, fleet=FLEET):
    write(decision, fleet)
    return refusal(capsys, "d.json", "--fleet", "f.yaml", "--to", to, "-o", "out/")


def unescaped(parts):
    return [part.replace("$$", "$") for part in parts]


def without_address(command):
    """A command line less host and port, which are those of a place."""
    at = command.index("--host")
    assert command[at + 2] == "--port"
    return command[:at] + command[at + 4 :]


# What was measured


class Recorder:
    """Takes the place of an executable, and writes down how each start of it was called."""

    def __init__(self, folder, executable):
        self.folder, self.calls = folder / "bin", folder / "calls"
        self.folder.mkdir()
        self.calls.mkdir()
        script = self.folder / executable
        script.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys\n"
            f"path = {str(self.calls)!r} + '/' + str(os.getpid())\n"
            "json.dump([sys.argv, dict(os.environ)], open(path, 'w'))\n"
        )
        script.chmod(0o755)

    def take(self):
        """Command lines and environments since the last call."""
        found = [json.loads(path.read_text()) for path in sorted(self.calls.iterdir())]
        for path in self.calls.iterdir():
            path.unlink()
        return [([Path(argv[0]).name, *argv[1:]], env) for argv, env in found]


KINDS = {
    "vllm": ("vllm", {"tensor-parallel-size": 4, "swap_space": None, "enforce_eager": True}),
    "trtllm": ("trtllm-serve", {"tp_size": 4, "max-batch-size": 8, "tags": ["a", "b c"]}),
    "sglang": ("python", {"tp-size": 4, "json-model-override-args": {"x": True}}),
}


@pytest.fixture(params=KINDS)
def launched(request, folder, monkeypatch):
    """An engine kind with the recorder of its executable, and what measuring tp4 called."""
    for name in ("FLEETSIEVE_API_KEY", "OPENAI_API_KEY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    executable, args = KINDS[request.param]
    recorder = Recorder(folder, executable)
    monkeypatch.setenv("PATH", f"{recorder.folder}:{os.environ['PATH']}")
    write(fleet=engine(kind=request.param, args=args))
    fleet = Fleet.load("f.yaml")

    async def start():
        with pytest.raises(LaunchFailed):
            await Server(launch_of(fleet, fleet.configs[0])).start()

    asyncio.run(start())
    ((measured, env),) = recorder.take()
    return request.param, recorder, without_address(measured), env


def test_the_script_starts_what_was_measured_on_gpus_of_their_own(launched, folder):
    kind, recorder, measured, env = launched
    exported(kind)
    environment = {**os.environ, "HF_TOKEN": "given", "HOME": str(folder)}
    for node in ("1", "2"):
        subprocess.run(["sh", "out/launch.sh", node], env=environment, check=True)
    calls = recorder.take()
    assert len(calls) == 5
    large = [call for call in calls if "," in call[1]["CUDA_VISIBLE_DEVICES"]]
    assert [without_address(argv) for argv, _ in large] == [measured, measured]
    for argv, found in calls:
        assert argv[argv.index("--host") + 1] == "0.0.0.0"
        assert found["WEIRD"] == env["WEIRD"] == FLEET["engine"]["env"]["WEIRD"]
        assert found["HF_TOKEN"] == "given"
        assert "VLLM_SERVER_DEV_MODE" not in found
    caches = [found[key] for _, found in calls for key in found if key == "TRITON_CACHE_DIR"]
    assert len(set(caches)) == len(caches), "compile caches are not shared"
    assert not list(folder.rglob("pwned"))


def test_containers_run_what_was_measured(launched):
    kind, _, measured, _ = launched
    deployments = [d for d in documents("kubernetes") if d["kind"] == "Deployment"]
    containers = [d["spec"]["template"]["spec"]["containers"][0] for d in deployments]
    found = [without_address(unescaped(c["command"])) for c in containers]
    assert found.count(measured) == 2
    services = [s for d in documents("compose") if "services" in d for s in d["services"].values()]
    found = [without_address(unescaped([*s["entrypoint"], *s["command"]])) for s in services]
    assert found.count(measured) == 2
    if kind != "trtllm":
        charts = [d for d in documents("llm-d") if "decode" in d]
        (containers,) = zip(*[d["decode"]["containers"] for d in charts], strict=True)
        found = [without_address(unescaped([*c["command"], *c["args"]])) for c in containers]
        assert found.count(measured) == 2


def test_dynamos_workers_get_the_engines_arguments(folder):
    workers = [d["spec"]["components"][1] for d in documents("dynamo")]
    container = workers[0]["podTemplate"]["spec"]["containers"][0]
    assert container["command"] == ["python3", "-m", "dynamo.vllm"]
    assert unescaped(container["args"]) == [
        "--model", FLEET["engine"]["model"], "--max-model-len", "2048", "--enforce-eager",
        "--hf-overrides", json.dumps(FLEET["engine"]["args"]["hf-overrides"]),
        "--allowed-origins", "a b", "1e3", "--tensor-parallel-size", "4",
    ]  # fmt: skip


def test_a_command_of_the_fleet_file_is_that_of_scripts_and_not_of_containers(folder, capsys):
    write(fleet=engine(command=["/opt/v/bin/vllm"]))
    assert "/opt/v/bin/vllm serve" in exported("vllm")["launch.sh"]
    deployment = documents("kubernetes")[1]
    assert "/opt/v" not in json.dumps(deployment)
    assert "takes the place of the command of tp1, tp4" in capsys.readouterr().err


# How often, and where


def replicas_of(to):
    """How often each pair runs, and with how many GPUs, by the files of a format."""
    count, gpus = Counter(), {}
    for document in documents(to):
        for about, number, each in parts(document):
            pair = (about["fleetsieve/workload"].replace("$$", "$"), about["fleetsieve/config"])
            count[pair] += number
            gpus[pair] = int(each)
    return count, gpus


def parts(document):
    limit = "nvidia.com/gpu"
    if document.get("kind") == "Deployment":
        spec = document["spec"]
        resources = spec["template"]["spec"]["containers"][0]["resources"]
        yield document["metadata"]["annotations"], spec["replicas"], resources["limits"][limit]
    elif document.get("kind") == "DynamoGraphDeployment":
        front, worker = document["spec"]["components"]
        assert "resources" not in front["podTemplate"]["spec"]["containers"][0]
        limits = worker["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]
        yield document["metadata"]["annotations"], worker["replicas"], limits[limit]
    elif "decode" in document:
        decode = document["decode"]
        limits = decode["containers"][0]["resources"]["limits"]
        yield decode["annotations"], decode["replicas"], limits[limit]
    for service in document.get("services", {}).values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        yield service["labels"], 1, len(device["device_ids"])


@pytest.mark.parametrize("to", FORMATS[1:])
def test_as_many_replicas_run_as_were_decided_on_no_more_gpus(folder, to):
    count, gpus = replicas_of(to)
    decided = {(r["workload"], r["config"]): r for r in DECISION["allocation"]}
    assert count == {pair: r["replicas"] for pair, r in decided.items()}
    assert all(gpus[pair] * r["replicas"] == r["gpus"] for pair, r in decided.items())
    assert sum(count[pair] * gpus[pair] for pair in count) <= DECISION["gpus"]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.sampled_from([(1, 2, 4), (2, 8), (1, 1), (4,)]),
    gpus=st.integers(1, 40),
    data=st.data(),
)
def test_replicas_of_a_node_share_neither_gpus_nor_ports(tmp_path_factory, sizes, gpus, data):
    left, rows = gpus, []
    for at, size in enumerate(sizes):
        most = left // size
        replicas = data.draw(st.integers(0, most))
        left -= replicas * size
        rows += [row("chat", f"c{at}", replicas, size)] if replicas else []
    if not rows:
        return
    folder = tmp_path_factory.mktemp("placed")
    configs = [{"name": f"c{at}", "gpus": size} for at, size in enumerate(sizes)]
    fleet = changed(FLEET, fleet={"gpus": gpus, "gpus_per_node": 8}, configs=configs)
    (folder / "f.yaml").write_text(json.dumps(fleet))
    decision = changed(DECISION, gpus=gpus, allocation=rows)
    (folder / "d.json").write_text(json.dumps(decision))
    argv = ["--fleet", folder / "f.yaml", "--to", "compose", "-o", folder / "out/"]
    assert main(["export", *map(str, [folder / "d.json", *argv])]) == 0
    files = sorted((folder / "out").iterdir(), key=lambda path: int(re.sub(r"\D", "", path.name)))
    started = 0
    for node, path in enumerate(files):
        services = yaml.safe_load(path.read_text())["services"]
        devices = [
            [int(i) for i in s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]]
            for s in services.values()
        ]
        used = [gpu for each in devices for gpu in each]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(min(8, gpus - 8 * node)))
        assert all(each[0] % len(each) == 0 for each in devices), "aligned blocks"
        ports = [port for s in services.values() for port in s["ports"]]
        assert len(set(ports)) == len(ports)
        started += len(services)
    assert started == sum(r["replicas"] for r in rows)
    assert len(files) <= -(-gpus // 8)


def test_each_replica_says_what_it_should_carry(folder):
    about = [d["metadata"]["annotations"] for d in documents("kubernetes")]
    found = {(a["fleetsieve/workload"], a["fleetsieve/config"]): a for a in about}
    chat, users = found["chat", "tp1"], found[HOSTILE, "tp1"]
    assert chat["fleetsieve/load-requests-per-second"] == "2.5"
    assert users["fleetsieve/load-open-requests"] == "64"
    assert chat["fleetsieve/capacity-requests-per-second"] == "1.5"
    # Two replicas of one config beside one of another, all of the same capacity.
    assert chat["fleetsieve/share-of-workload"] == "0.6667"
    assert found["chat", "tp4"]["fleetsieve/share-of-workload"] == "0.3333"


# Files that tools accept


def test_kubernetes_accepts_the_manifests(folder):
    for document in documents("kubernetes"):
        kubernetes_validate.validate(document, "1.31", strict=True)
    broken = documents("kubernetes")[0]
    broken["spec"]["replica"] = broken["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.31", strict=True)


def test_kubernetes_selects_pods_of_one_deployment_each(folder):
    found = documents("kubernetes")
    deployments = {d["metadata"]["name"]: d for d in found if d["kind"] == "Deployment"}
    services = [d for d in found if d["kind"] == "Service"]
    assert len(services) == len(deployments) == len(DECISION["allocation"])
    for service in services:
        selector = service["spec"]["selector"].items()
        chosen = [
            name for name, d in deployments.items()
            if selector <= d["spec"]["template"]["metadata"]["labels"].items()
        ]  # fmt: skip
        assert chosen == [service["metadata"]["name"]]


def test_compose_accepts_the_projects(folder):
    texts = exported("compose")
    assert sorted(texts) == ["compose-node-1.yaml", "compose-node-2.yaml"]
    for text in texts.values():
        compose_spec.PyCompose.from_yaml(text).validate()
        with pytest.raises(ValueError, match="retrys"):
            compose_spec.PyCompose.from_yaml(text.replace("retries:", "retrys:")).validate()


def test_dynamos_pods_are_pods_and_its_names_fit(folder):
    for document in documents("dynamo"):
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        assert set(document["spec"]) == {"backendFramework", "components"}
        for component in document["spec"]["components"]:
            assert set(component) == {"name", "type", "replicas", "podTemplate"}
            assert component["podTemplate"]["spec"]["containers"][0]["name"] == "main"
            # Grove, which may place the pods, leaves 45 characters for the two together.
            assert len(document["metadata"]["name"]) + len(component["name"]) <= 45
            metadata = {"name": "x"}
            template = {"kind": "PodTemplate", "template": component["podTemplate"]}
            pod = {"apiVersion": "v1", "metadata": metadata, **template}
            kubernetes_validate.validate(pod, "1.31", strict=True)


def test_llm_d_sends_variables_through_helm_and_they_survive(folder):
    (first, *_) = documents("llm-d")
    values = {v["name"]: v.get("value") for v in first["decode"]["containers"][0]["env"]}
    # What Helm's templates make of {{`{{`}}.
    rendered = re.sub(r"\{\{`(.*?)`\}\}", r"\1", values["WEIRD"])
    assert rendered == FLEET["engine"]["env"]["WEIRD"].replace("$", "$$")


@pytest.mark.parametrize("to", FORMATS)
def test_the_script_and_every_document_parse(folder, to):
    for name, text in exported(to).items():
        if name.endswith(".sh"):
            subprocess.run(["sh", "-n", f"out/{name}"], check=True)
        else:
            assert all(isinstance(d, dict) for d in yaml.safe_load_all(text))
        first = [line for line in text.splitlines() if line.startswith("# ")]
        assert "Certified at 95 % confidence" in first[1]


def test_text_stays_text_in_every_yaml(folder):
    tricky = [
        "1e3",
        "0o17",
        "yes",
        "n",
        "~",
        "null",
        "1_000",
        "12:30:45",
        ".inf",
        "0x1F",
        "=",
        "<<",
    ]
    env = {f"V{at}": value for at, value in enumerate(tricky)}
    write(fleet=engine(env=env))
    text = exported("kubernetes")["kubernetes.yaml"]
    quoted = {
        token.value for token in yaml.scan(text)
        if isinstance(token, yaml.ScalarToken) and token.style == '"'
    }  # fmt: skip
    assert quoted.issuperset(tricky)


@given(st.text())
def test_any_text_reads_back_as_it_was(text):
    document = {"a": text, "b": [text, {"c": text}]}
    assert list(yaml.safe_load_all(written([document, document], [text]))) == [document] * 2


# Names

labels = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@given(st.sets(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=8))
def test_names_are_dns_labels_and_different(pairs):
    found = names(pairs)
    assert set(found) == pairs
    assert len(set(found.values())) == len(pairs)
    assert all(labels.fullmatch(name) and len(name) <= 40 for name in found.values())


def test_plain_names_stay_and_alike_ones_are_told_apart():
    assert names([("chat", "tp1")]) == {("chat", "tp1"): "chat-tp1"}
    found = names([("a-b", "c"), ("a", "b-c"), ("A-b", "c"), ("é", "1"), ("è", "1")])
    assert len(set(found.values())) == 5


# Secrets


@pytest.mark.parametrize("to", FORMATS)
def test_secrets_are_referred_to_and_never_written(folder, capsys, monkeypatch, to):
    monkeypatch.setenv("OPENAI_API_KEY", "sk_leak")
    env = {
        "HF_TOKEN": "hf_leak", "VLLM_API_KEY": "k_leak", "HTTPS_PROXY": "http://u:p_leak@h:1",
        "TOKENIZERS_PARALLELISM": "true",
    }  # fmt: skip
    write(fleet=engine(env=env))
    text = "".join(exported(to).values())
    out, err = capsys.readouterr()
    assert "leak" not in text + out + err
    assert all(name in text for name in env)
    assert "true" in text


def test_a_secret_among_the_arguments_is_refused(folder, capsys):
    assert "hf-token" in refused(capsys, fleet=engine(args={"hf-token": "hf_leak"}))
    assert "api_key" in refused(capsys, fleet=engine(args={"api_key": "k"}))


@pytest.mark.parametrize(
    "value", [["--api-key", "LEAK"], {"password": "LEAK"}, {"a": ["Authorization: Bearer LEAK"]}]
)
def test_a_secret_deep_in_an_argument_is_refused(folder, capsys, value):
    said = refused(capsys, fleet=engine(args={"extra": value}))
    assert "extra" in said
    assert "LEAK" not in said


# Probes


@pytest.fixture
def server():
    """A server whose front end always answers, and whose engine may be dead."""

    class Handler(http.server.BaseHTTPRequestHandler):
        alive, seen = True, []

        def do_GET(self):
            self.reply(200, {"data": [{"id": "m"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.seen.append((self.path, body, self.headers.get("Authorization")))
            self.reply(*((200, {"choices": [{"text": "x"}]}) if self.alive else (500, {})))

        def reply(self, status, data):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(data).encode())

        def log_message(self, format, *args):  # noqa: A002 - the name of the base class
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running, Handler
        running.shutdown()


@pytest.mark.parametrize("to", ["kubernetes", "compose", "llm-d"])
def test_a_replica_is_ready_when_it_completes_a_token(folder, server, to):
    running, handler = server
    command = probe_of(to)
    assert command[:2] == ["python3", "-c"]
    code = command[2].replace(":8000/", f":{running.server_address[1]}/")

    def ready():
        env = {**os.environ, "VLLM_API_KEY": "secret"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, check=False, capture_output=True
        )
        return done.returncode == 0

    assert ready()
    body = {"model": "m", "prompt": "a", "max_tokens": 1}
    assert handler.seen == [("/v1/completions", body, "Bearer secret")]
    handler.alive = False
    assert not ready()


def probe_of(to):
    (first, *_) = documents(to)
    if to == "compose":
        service = next(iter(first["services"].values()))
        kind, *command = service["healthcheck"]["test"]
        assert kind == "CMD"
        return unescaped(command)
    if to == "kubernetes":
        container = first["spec"]["template"]["spec"]["containers"][0]
    else:
        container = first["decode"]["containers"][0]["extraConfig"]
    assert container["startupProbe"]["exec"] == container["readinessProbe"]["exec"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    return container["readinessProbe"]["exec"]["command"]


# Warnings and refusals


def test_without_a_certificate_an_export_warns_and_succeeds(folder, capsys):
    write(changed(DECISION, certified=False, stop_reason="budget"))
    text = exported("kubernetes", "--image", "a/b:1")["kubernetes.yaml"]
    assert "warning: the decision is not certified" in capsys.readouterr().err
    assert "# WARNING: the decision is not certified" in text
    assert "# Not certified (the budget is spent)" in text


def test_a_workload_that_gets_nothing_and_an_unmeasured_load_are_warned_of(folder, capsys):
    rows = [{**row("chat", "tp1", 1, 1), "measured": False}]
    write(changed(DECISION, allocation=rows))
    exported("vllm")
    err = capsys.readouterr().err
    assert "nothing is deployed for the workload Чат" in err
    assert "the load of chat on tp1 was never measured" in err


def test_the_image_is_what_is_asked_for(folder, capsys):
    images = ["--image", "reg:5000/all:1", "--image", "sglang=other:2"]
    assert {c["image"] for d in documents("compose", *images) for c in d["services"].values()} == {
        "reg:5000/all:1"
    }
    assert "warning" not in capsys.readouterr().err
    exported("compose")
    assert "name the one that was with --image" in capsys.readouterr().err
    for wrong in ("", "vlm=a:1", "a b", "vllm="):
        options = ["d.json", "--fleet", "f.yaml", "--to", "compose", "--image", wrong]
        assert "--image is" in refusal(capsys, *options)


def test_a_model_that_is_a_folder_is_mounted(folder, capsys):
    Path("m$1").mkdir()
    write(fleet=engine(model="m$1"))
    path = str(folder / "m$1")
    pod = documents("kubernetes")[0]["spec"]["template"]["spec"]
    assert {"name": "model", "hostPath": {"path": path, "type": "Directory"}} in pod["volumes"]
    mount = {"name": "model", "mountPath": path, "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]
    service = next(iter(documents("compose")[1]["services"].values()))
    assert service["volumes"][0]["source"].replace("$$", "$") == path
    worker = yaml.safe_load(exported("dynamo")["dynamo.yaml"].split("---")[0])["spec"][
        "components"
    ][1]
    assert worker["podTemplate"]["spec"]["containers"][0]["volumeMounts"] == [mount]
    assert "llm-d loads models by name" in refused(capsys, "llm-d", fleet=engine(model="m$1"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"kind": "grid", "path": "g.csv"}, "replays a grid"),
        ({"kind": "simulated", "model": "qwen3-8b"}, "simulated engine, which serves nothing"),
        ({"kind": "openai", "url": "http://h:1"}, "already up"),
        (None, "has no engine"),
    ],
)
def test_what_cannot_be_launched_is_one_sentence_that_says_what_would_do(
    folder, capsys, kind, words
):
    # A grid beside the fleet would be read, and there is none here.
    fleet = changed(FLEET, engine=None)
    fleet["configs"] = [{**c, "engine": kind} for c in fleet["configs"]]
    for config in fleet["configs"]:
        config.pop("args", None)
        if kind is None:
            config.pop("engine")
    message = refused(capsys, "kubernetes", fleet=fleet)
    assert words in message
    assert "kind vllm, trtllm or sglang" in message


REFUSED = {
    "nothing allocated": ({"allocation": []}, {}, "there is nothing to deploy"),
    "unknown config": ({"allocation": [row("chat", "tp44", 1, 4)]}, {}, "did you mean 'tp4'?"),
    "unknown workload": ({"allocation": [row("chaat", "tp4", 1, 4)]}, {}, "did you mean 'chat'?"),
    "other GPUs": ({"allocation": [row("chat", "tp4", 1, 2)]}, {}, "takes 4 GPUs"),
    "a pair twice": ({"allocation": [row("chat", "tp4", 1, 4)] * 2}, {}, "twice"),
    "over the budget": ({"gpus": 4}, {}, "take 11 GPUs and it has 4"),
    "another schema": ({"schema": "fleetsieve.plan/1"}, {}, "fleetsieve.decision/1"),
    "NaN": ({"gap": float("nan")}, {}, "gap is nan"),
    "negative replicas": ({"allocation": [row("chat", "tp4", -1, 4)]}, {}, "replicas is -1"),
    "no mapping": ({"value": 3}, {}, "value is 3"),
    "no variable": ({}, {"env": {"A B": "x"}}, "'A B' is no name"),
    "NUL": ({}, {"env": {"A": "x\0"}}, "NUL"),
    "NUL in args": ({}, {"args": {"a": {"b": ["x\0"]}, "c": ["\0"]}}, "NUL"),
    "too many": (
        {"gpus": 10**9, "allocation": [row("chat", "tp1", 10**8, 1)]},
        {},
        "use --to kubernetes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(folder, capsys, case):
    decision, settings, words = REFUSED[case]
    assert words in refused(capsys, "vllm", changed(DECISION, **decision), engine(**settings))


def places(data, path=()):
    """The paths to all values inside `data`."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just([]), st.just({}),
    st.just({"a": 1}), st.lists(st.text(max_size=3), max_size=2),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(at=st.sampled_from(list(places(DECISION))), junk=JUNK, to=st.sampled_from(FORMATS))
def test_no_junk_in_a_decision_is_our_bug(tmp_path_factory, at, junk, to):
    folder = tmp_path_factory.mktemp("junk")
    decision = copy.deepcopy(DECISION)
    inside = decision
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = junk
    (folder / "d.json").write_text(json.dumps(decision))
    (folder / "f.yaml").write_text(json.dumps(FLEET))
    options = ["--fleet", f"{folder}/f.yaml", "--to", to, "-o", f"{folder}/out/"]
    assert main(["export", f"{folder}/d.json", *options]) in (0, 2)


def test_a_format_that_cannot_say_it_is_refused(folder, capsys):
    trtllm = engine(kind="trtllm", args={})
    assert "use --to trtllm" in refused(capsys, "vllm", fleet=trtllm)
    assert "use --to kubernetes" in refused(capsys, "dynamo", fleet=trtllm)
    assert "use --to kubernetes" in refused(capsys, "llm-d", fleet=trtllm)


def test_files_that_are_no_decision_are_refused(folder, capsys):
    for text in ("", "no JSON", "[1]", '{"schema": 1}', "[" * 100_000, "null"):
        Path("x.json").write_text(text)
        refusal(capsys, "x.json", "--fleet", "f.yaml", "--to", "vllm")
    assert "give --fleet" in refusal(capsys, "d.json", "--to", "vllm")
    assert "does not exist" in refusal(capsys, "none.db", "--to", "vllm")
    assert refusal(capsys, ".", "--to", "vllm") == "error: . is a directory; name a file in it\n"


def test_one_file_goes_to_stdout_or_to_a_file_and_several_to_a_folder(folder, capsys):
    argv = ["d.json", "--fleet", "f.yaml", "--to"]
    assert main(["export", *argv, "vllm"]) == 0
    out = capsys.readouterr().out
    assert main(["export", *argv, "vllm", "-o", "launch.txt"]) == 0
    assert Path("launch.txt").read_text() == out
    assert capsys.readouterr().err == "wrote launch.txt\n"
    assert "give -o DIR" in refusal(capsys, *argv, "compose")
    assert "2 files" in refusal(capsys, *argv, "compose", "-o", "one.yaml")
    assert "cannot be written" in refusal(capsys, *argv, "vllm", "-o", "no/where.txt")
    assert "-o is empty" in refusal(capsys, *argv, "vllm", "-o", "")
    assert "can be no file" in refusal(capsys, *argv, "vllm", "-o", "x" * 300)
    assert main(["export", *argv, "compose", "-o", "new/folder"]) == 0
    assert len(list(Path("new/folder").iterdir())) == 2


# Studies

GRID = """\
workload,config,gpus,tp,rate,throughput,e2e_p99,gpu_seconds,status
chat,tp1,1,1,0.5,0.5,10,100,ok
chat,tp1,1,1,1,0.9,40,100,ok
chat,tp2,2,2,1,1,9,200,ok
chat,tp2,2,2,2,1.8,29,200,ok
"""
STUDIED = """\
fleet: {gpus: 4}
engine: {kind: vllm, model: m, args: {max-model-len: 100}}
configs:
  - {name: tp1, gpus: 1, features: {tp: 1}}
  - {name: tp2, gpus: 2, features: {tp: 2}, args: {tensor-parallel-size: 2}}
workloads:
  - {name: chat, demand: 4, slo: {e2e_p99: 30}}
"""
REPLAYED = STUDIED.replace("{kind: vllm, model: m, args: {max-model-len: 100}}",
                           "{kind: grid, path: g.csv}")  # fmt: skip


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Two studies of the same grid: of a fleet with an engine, and of one that replays it."""
    folder = tmp_path_factory.mktemp("studies")
    (folder / "fleets").mkdir()
    (folder / "fleets/g.csv").write_text(GRID)
    for name, text in (("live", STUDIED), ("replayed", REPLAYED)):
        (folder / f"fleets/{name}.yaml").write_text(text)
        grid = ["--grid", f"{folder}/fleets/g.csv"] if name == "live" else []
        argv = ["run", f"{folder}/fleets/{name}.yaml", *grid, "--study", f"{folder}/{name}.db"]
        assert main([*argv, "--quiet"]) == 0
    return folder


def test_a_study_knows_its_decision_its_fleet_and_its_grid(studies, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fleets = studies / "fleets"
    options = ["--grid", str(fleets / "g.csv"), "--study", str(studies / "live.db"), "--json", "-"]
    assert main(["decide", str(fleets / "live.yaml"), *options]) == 0
    decision = json.loads(capsys.readouterr().out)
    assert main(["export", str(studies / "live.db"), "--to", "kubernetes"]) == 0
    found = [d for d in yaml.safe_load_all(capsys.readouterr().out) if d["kind"] == "Deployment"]
    count = {
        d["metadata"]["annotations"]["fleetsieve/config"]: d["spec"]["replicas"] for d in found
    }
    assert count == {r["config"]: r["replicas"] for r in decision["allocation"]} == {"tp2": 2}


def test_a_study_of_a_grid_takes_its_engines_from_another_fleet_file(studies, capsys):
    study, fleet = str(studies / "replayed.db"), str(studies / "fleets/live.yaml")
    assert "replays a grid" in refusal(capsys, study, "--to", "vllm")
    assert main(["export", study, "--to", "vllm", "--fleet", fleet]) == 0
    out = capsys.readouterr().out
    assert out.count("vllm serve m --host") == 2
    assert out.count("--max-model-len 100 --tensor-parallel-size 2") == 2


def test_a_study_of_an_engine_is_not_exported_with_other_arguments(studies, capsys, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(STUDIED.replace("max-model-len: 100", "max-model-len: 99"))
    options = ["--to", "vllm", "--fleet", str(other)]
    message = refusal(capsys, str(studies / "live.db"), *options)
    assert "has other engine than in" in message
    assert "'tp1'" in message


def test_a_study_whose_grid_is_gone_says_so(studies, capsys, tmp_path):
    moved = tmp_path / "moved.db"
    moved.write_bytes((studies / "live.db").read_bytes())
    grid = studies / "fleets/g.csv"
    hidden = grid.rename(grid.with_suffix(".hidden"))
    try:
        assert "give --grid GRID" in refusal(capsys, str(moved), "--to", "vllm")
        (tmp_path / "again.csv").write_text(GRID)
        options = ["--to", "vllm", "--grid", str(tmp_path / "again.csv")]
        assert main(["export", str(moved), *options]) == 0
    finally:
        hidden.rename(grid)
