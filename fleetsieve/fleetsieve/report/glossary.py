"""What the words of a study's report mean."""

from xml.etree.ElementTree import Element

from fleetsieve.report.markup import element
from fleetsieve.report.parts import details, section

_WORDS = {
    "workload": "a kind of requests, with a demand in requests per second and limits on latency",
    "SLO": "such a limit, as e2e_p99: of 100 requests, 99 take no longer from start to end",
    "config": "a way to run one replica of the model: how many GPUs it takes, and its settings",
    "load": "what is put on one replica in a benchmark: requests per second, or open requests",
    "capacity": "the most requests per second that one replica completes within all SLOs",
    "certain": "at least so much, by the lower bounds of capacities that were measured",
    "possible": "at most so much, by the upper bounds, whatever was not measured yet",
    "gap": "what another allocation could gain at most: possible less certain",
    "tolerance": "the gap at which measuring ends, since more would hardly be gained",
    "confidence": "the probability with which all bounds hold at the same time, by the model",
    "GPU-second": "one GPU for one second, spent on benchmarks; 3,600 are a GPU-hour",
}


def glossary() -> Element:
    """A list that unfolds."""
    rows = [
        element("div", element("dt", word), element("dd", meaning))
        for word, meaning in _WORDS.items()
    ]
    words = element("dl", rows, class_="facts")
    return section("words", "What the words mean", details("words-list", "Unfold", words))
