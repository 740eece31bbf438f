"""Counters of metrics pages, of a real server among them."""

from fleetsieve_measure.engines import ENGINES
from fleetsieve_measure.prometheus import totals

PAGE = """\
# HELP a_total Things. a_total 99
# TYPE a_total counter
a_total{engine="0",name="x } 7"} 3.0
a_total{engine="1"} 4e0 1395066363000
b_total 5
b_total_created 1.7e9
c_total NaN
d_total one
"""


def test_values_are_summed_over_labels_and_nothing_else_is_taken_for_one():
    names = {"first": "a_total", "second": "b_total", "nan": "c_total", "text": "d_total"}
    assert totals(PAGE, {**names, "absent": "e_total"}) == {"first": 7.0, "second": 5.0}
    assert totals("<html>no metrics here</html>", names) == {}


def test_the_page_of_a_real_server_has_what_is_looked_for(data):
    raw = (data / "samples/http/vllm_0.32.0_cpu_quiet/get_metrics_after.http").read_text()
    names = ENGINES["vllm"].counters
    found = totals(raw.partition("\r\n\r\n")[2] or raw, names)
    assert set(found) == set(names)
    for name, metric in names.items():
        lines = [line for line in raw.splitlines() if line.startswith(f"{metric}{{")]
        assert found[name] == sum(float(line.rsplit(" ", 1)[1]) for line in lines)
