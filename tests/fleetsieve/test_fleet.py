"""The fleet file: what it means, and one sentence for everything that is wrong with it."""

import json
from pathlib import Path

import pytest
import yaml

from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet

EXAMPLE = Path(__file__).parents[2] / "examples/qwen3-32b-h100/fleet.yaml"
TEXT = """\
fleet: {gpus: 16}
engine: {kind: vllm, model: some/model, args: {max-model-len: 16384}}
configs:
  - {name: tp1, gpus: 1, features: {tp: 1}}
  - {name: tp2, gpus: 2, features: {tp: 2, scheduler: boost}, args: {tensor-parallel-size: 2}}
workloads:
  - {name: batch, demand: 1}
  - {name: chat, demand: 12, slo: {e2e_p99: 30}, loads: [0.5, 1], arrivals: poisson}
prior: predicted.csv
"""


def changed(old, new):
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def refusal(text):
    with pytest.raises(InputError) as caught:
        Fleet.parse(text, source="f.yaml")
    message = str(caught.value)
    assert message.startswith("f.yaml")
    assert "\n" not in message
    assert ". " not in message, "one sentence"
    return message


def test_a_fleet_says_what_its_file_says():
    fleet = Fleet.parse(TEXT, base="some/folder", source="some/folder/prod.yaml")
    batch, chat = fleet.workloads
    assert (fleet.name, fleet.hardware.gpus, fleet.engine.kind) == ("prod", 16, "vllm")
    assert [c.name for c in fleet.configs] == ["tp1", "tp2"]
    assert fleet.configs[1].features == {"tp": 2.0, "scheduler": "boost"}
    assert fleet.configs[1].args == {"tensor-parallel-size": 2}
    assert (chat.demand, chat.slo, chat.loads.of(4)) == (12.0, {"e2e_p99": 30.0}, (0.5, 1.0))
    assert chat.arrivals.load_kind == "rate"
    assert (batch.slo, batch.loads, batch.arrivals) == ({}, None, None)
    assert fleet.prior_path == Path("some/folder/predicted.csv")
    assert fleet.grid_path is None


def test_what_is_left_out_has_the_documented_default():
    fleet = Fleet.parse(TEXT)
    assert (fleet.hardware.gpus_per_node, fleet.hardware.objective) == (8, "max-min")
    decision = fleet.decision
    assert (decision.tolerance, decision.confidence, decision.stop) == (0.02, 0.95, "gap")
    assert (decision.budget_gpu_seconds, decision.unmeasured) == (None, "refuse")
    assert decision.inference == "map"
    batch = fleet.workloads[0]
    assert (batch.weight, batch.headroom, batch.min_replicas) == (1.0, 0.0, 0)
    assert batch.max_replicas is None


def test_the_example_loads_with_its_grid_beside_it():
    fleet = Fleet.load(EXAMPLE)
    assert fleet.grid_path == EXAMPLE.parent / "grid.csv"
    assert fleet.grid_path.is_file()
    assert fleet.name == "fleet"
    assert all(w.arrivals.load_kind == "concurrency" for w in fleet.workloads)


def test_json_and_yaml_with_aliases_are_the_same_fleet():
    plain = yaml.safe_load(TEXT)
    plain["workloads"][0]["loads"] = plain["workloads"][1]["loads"]
    aliased = yaml.safe_dump(plain)
    assert "&id001" in aliased
    assert Fleet.parse(json.dumps(plain)) == Fleet.parse(aliased)


def test_a_fleet_is_its_own_mapping():
    forms = ("{per_gpu: [1, 2]}", "{auto: 8}", "[3, 1]", "null")
    arrivals = ("constant", "{gamma: {cv: 2}}", "{concurrency: true}", "null")
    for loads, arrival in zip(forms, arrivals, strict=True):
        text = changed("[0.5, 1], arrivals: poisson", f"{loads}, arrivals: {arrival}")
        fleet = Fleet.parse(text)
        again = Fleet.parse(json.loads(json.dumps(fleet.mapping())))
        assert again == fleet
        assert again.mapping() == fleet.mapping()
    assert Fleet.parse(TEXT).mapping() == yaml.safe_load(TEXT)


def test_levels_per_gpu_grow_with_the_replica():
    chat = Fleet.parse(changed("[0.5, 1]", "{per_gpu: [2, 0.5]}")).workloads[1]
    assert chat.loads.of(4) == (2.0, 8.0)


def test_numbers_without_a_dot_before_the_exponent_are_numbers():
    assert Fleet.parse(changed("demand: 12", "demand: 1e-3")).workloads[1].demand == 0.001
    assert Fleet.parse(changed("tp: 1}", "x: 2E+1}")).configs[0].features == {"x": 20.0}


def test_requests_come_as_counts_distributions_or_a_trace():
    counts = "{prompt_tokens: {lognormal: {median: 800, sigma: 0.8}, max: 8000}, output_tokens: 20}"
    chat = Fleet.parse(changed("loads: [", f"requests: {counts}, loads: [")).workloads[1]
    assert chat.requests.prompt_tokens.lognormal.median == 800
    assert chat.requests.prompt_tokens.max == 8000
    assert chat.requests.output_tokens.constant == 20
    trace = changed("arrivals: poisson", "arrivals: trace, requests: {trace: t.csv}")
    assert Fleet.parse(trace).workloads[1].requests.trace == "t.csv"


def test_headroom_multiplies_demand():
    chat = Fleet.parse(changed("demand: 12", "demand: 12, headroom: 0.25")).workloads[1]
    assert chat.total_demand == 15.0


def test_a_config_engine_overrides_keys_of_the_fleets():
    own = "{name: tp1, gpus: 1, engine: {args: {enable-prefix-caching: true}}, "
    engine = Fleet.parse(changed("{name: tp1, gpus: 1, ", own)).engine_of("tp1")
    assert (engine.kind, engine.model) == ("vllm", "some/model")
    assert engine.args == {"max-model-len": 16384, "enable-prefix-caching": True}
    other = "{name: tp1, gpus: 1, engine: {kind: sglang}, "
    engine = Fleet.parse(changed("{name: tp1, gpus: 1, ", other)).engine_of("tp1")
    assert (engine.kind, engine.model, engine.args) == ("sglang", "some/model", {})
    assert Fleet.parse(TEXT).engine_of("tp2") == Fleet.parse(TEXT).engine


def test_configs_that_fit_nowhere_are_named_and_need_no_divisor():
    fleet = Fleet.parse(changed("gpus: 2,", "gpus: 24,"))
    assert list(fleet.unusable) == ["tp2"]
    assert "24" in fleet.unusable["tp2"]
    small = Fleet.parse(TEXT.replace("gpus: 16", "gpus: 1"))
    assert list(small.unusable) == ["tp2"]
    assert "the fleet has 1" in small.unusable["tp2"]
    nothing = TEXT.replace("gpus: 2,", "gpus: 9,").replace("gpus: 1,", "gpus: 16,")
    assert list(Fleet.parse(nothing).unusable) == ["tp1", "tp2"]


def test_the_json_schema_knows_the_files_own_keys():
    schema = json.loads(json.dumps(Fleet.json_schema()))
    assert set(schema["required"]) == {"fleet", "configs", "workloads"}
    assert "fleet" in schema["properties"]
    assert schema["additionalProperties"] is False
    loads = schema["$defs"]["Workload"]["properties"]["loads"]["anyOf"]
    assert loads[0]["type"] == "array"


WORKLOAD = [
    ("demand: 12", "demnad: 12", ["workloads[1] 'chat'", "'demnad'", "did you mean 'demand'"]),
    ("demand: 12", "weight: 1", ["workloads[1] 'chat': demand is missing", "requests/s"]),
    ("demand: 12", "demand: .nan", ["'chat': demand is nan", "finite"]),
    ("demand: 12", "demand: .inf", ["'chat': demand is inf", "finite"]),
    ("demand: 12", "demand: -1", ["'chat': demand is -1", "at least 0"]),
    ("demand: 12", "demand: true", ["'chat': demand is True", "number"]),
    ("demand: 12", "demand: '12'", ["'chat': demand is '12'", "number"]),
    ("demand: 12", "demand: 12 req/s", ["'chat': demand is '12 req/s'", "number"]),
    ("demand: 12", "demand: [12]", ["'chat': demand is [12]", "number"]),
    ("demand: 12", "demand: null", ["'chat': demand is None", "number"]),
    ("demand: 12", "demand: 1, demand: 2", ["line 8", "'demand'", "twice", "keep one"]),
    ("demand: 12", "demand: 1, weight: 0", ["'chat': weight is 0", "above 0"]),
    ("demand: 12", "demand: 1, headroom: -0.1", ["'chat': headroom is -0.1", "at least 0"]),
    ("demand: 12", "demand: 1, min_replicas: 1.5", ["min_replicas is 1.5", "whole number"]),
    (
        "demand: 12",
        "demand: 1, min_replicas: 3, max_replicas: 2",
        ["'chat': max_replicas is 2", "min_replicas 3", "give"],
    ),
    ("demand: 12", "demand: 1, on: 3", ["'chat'", "unknown"]),
    ("name: chat", "name: no", ["workloads[1]: name is False", "quote"]),
    ("name: chat", "name: 1024", ["workloads[1]: name is 1024", "quotes"]),
    ("name: chat", "name: ''", ["workloads[1]", "name is ''", "not empty"]),
    ("name: chat", "name: batch", ["workloads", "'batch'", "twice"]),
    ("e2e_p99: 30", "e2e_p101: 30", ["'chat': slo.e2e_p101", "at most 100"]),
    ("e2e_p99: 30", "e2e_p0: 30", ["'chat': slo.e2e_p0", "above 0"]),
    ("e2e_p99: 30", "e2e_p99_ms: 30", ["'chat': slo.e2e_p99_ms", "seconds"]),
    ("e2e_p99: 30", "e2e_p99: 30s", ["'chat': slo.e2e_p99 is '30s'", "seconds"]),
    ("e2e_p99: 30", "e2e_p99: 0", ["'chat': slo.e2e_p99 is 0", "above 0"]),
    ("e2e_p99: 30", "e2e_p99: .inf", ["'chat': slo.e2e_p99 is inf", "finite"]),
    ("[0.5, 1]", "[]", ["'chat': loads", "[]", "empty"]),
    ("[0.5, 1]", "[1, 1.0]", ["'chat': loads", "[1.0, 1.0]", "distinct"]),
    ("[0.5, 1]", "[0, 1]", ["'chat': loads", "is 0", "above 0"]),
    ("[0.5, 1]", "[a, 1]", ["'chat': loads", "'a'", "number"]),
    ("[0.5, 1]", "3", ["'chat': loads is 3", "per_gpu"]),
    ("[0.5, 1]", "{per_gpu: []}", ["'chat': loads", "[]", "empty"]),
    ("[0.5, 1]", "{auto: 0}", ["'chat': loads.auto is 0", "at least 1"]),
    ("[0.5, 1]", "{atuo: 3}", ["'chat': loads", "'atuo'", "'auto'"]),
    ("[0.5, 1]", "{auto: 3, per_gpu: [1]}", ["'chat': loads", "2 forms", "give"]),
    ("arrivals: poisson", "arrivals: posson", ["'chat': arrivals is 'posson'", "poisson"]),
    ("arrivals: poisson", "arrivals: {gamma: {cv: 0}}", ["'chat': arrivals.cv is 0", "above 0"]),
    ("arrivals: poisson", "arrivals: {gamma: 2}", ["'chat': arrivals is {'gamma': 2}", "cv"]),
    ("arrivals: poisson", "arrivals: {concurrency: false}", ["arrivals", "False", "true"]),
    ("arrivals: poisson", "arrivals: trace", ["'chat': arrivals", "'trace'", "requests"]),
    ("arrivals: poisson", "requests: {}", ["'chat': requests is {}", "trace"]),
    (
        "arrivals: poisson",
        "requests: {prompt_tokens: 12.5, output_tokens: 1}",
        ["requests.prompt_tokens", "12.5", "whole number"],
    ),
    (
        "arrivals: poisson",
        "requests: {prompt_tokens: {lognormal: {median: 3}}, output_tokens: 1}",
        ["requests.prompt_tokens.lognormal.sigma is missing", "give"],
    ),
]
ELSEWHERE = [
    ("{gpus: 16}", "{gpus: 0}", ["fleet.gpus is 0", "at least 1"]),
    ("{gpus: 16}", "{gpus: 1.5}", ["fleet.gpus is 1.5", "whole number"]),
    ("{gpus: 16}", "{gpus: 1" + "0" * 400 + "}", ["fleet.gpus is 1000", "finite"]),
    ("{gpus: 16}", "{gpus: 10000000000}", ["fleet.gpus is 10000000000", "up to 1000000000"]),
    ("{gpus: 16}", "{gpus: 16, gpus_per_node: 0}", ["fleet.gpus_per_node is 0", "at least 1"]),
    ("{gpus: 16}", "{gpus: 16, gpus_per_node: 3}", ["[1, 2]", "2 does not divide 3"]),
    ("{gpus: 16}", "{gpus: 16, objective: maxmin}", ["fleet.objective is 'maxmin'", "max-min"]),
    ("{gpus: 16}", "{gpus: 16, price_per_gpu_hour: -1}", ["price_per_gpu_hour is -1", "at least"]),
    ("{gpus: 16}", "{}", ["fleet.gpus is missing", "whole number"]),
    ("{gpus: 16}", "16", ["fleet is 16", "mapping"]),
    ("fleet:", "flet:", ["'flet'", "did you mean 'fleet'"]),
    ("fleet:", "hardware:", ["'hardware'", "accepted are fleet"]),
    ("prior: pre", "decision: {confidence: 95}\nprior: pre", ["decision.confidence is 95", "1"]),
    ("prior: pre", "decision: {tolerance: 2%}\nprior: pre", ["decision.tolerance is '2%'", "gap"]),
    ("prior: pre", "decision: {stop: never}\nprior: pre", ["decision.stop is 'never'", "regret"]),
    ("prior: pre", "decision: {budget_gpu_seconds: 0}\nprior: pre", ["budget_gpu_seconds is 0"]),
    ("prior: pre", "measure: {second: 3}\nprior: pre", ["measure", "'second'", "'seconds'"]),
    ("prior: pre", "measure: {seconds: 0}\nprior: pre", ["measure.seconds is 0", "above 0"]),
    ("gpus: 2,", "gpus: 0,", ["configs[1] 'tp2': gpus is 0", "at least 1"]),
    ("gpus: 2,", "gpus: true,", ["configs[1] 'tp2': gpus is True", "number"]),
    ("gpus: 2,", "gpus: 3,", ["configs", "[1, 3]", "3 does not divide 8"]),
    ("name: tp2", "name: tp1", ["configs", "'tp1'", "twice"]),
    ("tp: 1}", "tp: 0}", ["configs[0] 'tp1'", "features.tp is 0", "above 0"]),
    ("tp: 1}", "tp: one}", ["configs[0] 'tp1'", "features.tp is 'one'", "above 0"]),
    ("tp: 1}", "x: .nan}", ["configs[0] 'tp1': features.x is nan", "finite"]),
    ("tp: 1}", "x: true}", ["configs[0] 'tp1': features.x is True", "quote"]),
    ("kind: vllm", "kind: vlm", ["engine.kind is 'vlm'", "vllm"]),
    ("kind: vllm", "kind: grid", ["engine", "path is missing", "grid file"]),
    ("kind: vllm, model", "model", ["engine.kind is missing", "vllm"]),
    ("gpus: 1,", "gpus: 1, engine: {kind: grid},", ["'tp1'", "path", "grid file"]),
    ("gpus: 1,", "gpus: 1, args: {a: [2024-01-01]},", ["configs[0] 'tp1': args.a", "2024", "text"]),
    ("gpus: 1,", "gpus: 1, args: {1: 2},", ["configs[0] 'tp1': args", "key 1", "quotes"]),
    ("gpus: 1,", "gpus: 1, args: [a],", ["configs[0] 'tp1': args is ['a']", "mapping"]),
    ("tp: 1}", '"a\\nb": 1}', ["configs[0] 'tp1': features.'a\\nb'", "control characters"]),
    ("gpus: 1,", "gpus: 1, engine: {kindd: vllm},", ["configs[0] 'tp1': engine", "'kind'"]),
]


@pytest.mark.parametrize(("old", "new", "names"), WORKLOAD + ELSEWHERE)
def test_a_wrong_value_is_refused_with_its_place_its_value_and_what_would_do(old, new, names):
    message = refusal(changed(old, new))
    for name in names:
        assert name in message


BOMB = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["empty", "mapping"]),
        ("# nothing\n", ["empty", "mapping"]),
        ("- a\n- b\n", ["list", "mapping"]),
        ("fleet: {gpus: 16\nx: 1\n", ["line 2", "YAML"]),
        ("a: b: c", ["line 1", "YAML"]),
        ("a: 1\n---\nb: 2\n", ["line 2", "document"]),
        ("a: *b", ["line 1", "alias"]),
        ("a: &x [*x]", ["line 1", "contains itself"]),
        ("{[1]: 2}", ["line 1", "key"]),
        ("a: !!python/object:os.system {}", ["line 1", "tag"]),
        ("a: 2024-13-45", ["month", "quotes"]),
        ("a: !!bool maybe", ["maybe", "quotes"]),
        ("a: " + "[" * 5000, ["nest"]),
        (BOMB, ["expands to", "200000"]),
        ("fleet: {gpus: 1}\nconfigs: []\nworkloads: []\n", ["configs is []", "list of configs"]),
    ],
)
def test_text_that_is_no_fleet_is_refused_in_one_sentence(text, names):
    message = refusal(text)
    for name in names:
        assert name in message


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (None, ["does not exist"]),
        (b"\xff\xfe\x00\x01", ["UTF-8"]),
        (b"fleet: \x00", ["control characters", "YAML"]),
        (b"#" * 10_000_001, ["10000001 bytes", "10000000"]),
    ],
)
def test_a_file_that_cannot_be_a_fleet_is_refused(tmp_path, content, names):
    path = tmp_path / "f.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Fleet.load(path)
    for name in [str(path), *names]:
        assert name in str(caught.value)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a directory; name a file"):
        Fleet.load(tmp_path)


def test_a_byte_order_mark_is_no_matter(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(TEXT, encoding="utf-8-sig")
    assert Fleet.load(path).mapping() == Fleet.parse(TEXT).mapping()
