"""What to run: replicas as GPUs on nodes, and the same as a table."""

from collections.abc import Mapping
from xml.etree.ElementTree import Element

from fleetsieve.report.drawing import label, short_name
from fleetsieve.report.findings import Findings
from fleetsieve.report.markup import element, name
from fleetsieve.report.nodes import Block, Node, nodes
from fleetsieve.report.parts import key, section, table
from fleetsieve.report.wording import colour, count, letters
from fleetsieve.show import load, number, span

_HEIGHT, _GAP, _WIDE, _MOST, _FEWEST = 46, 2, 296, 60, 8
# Of a character of the small text in a block.
_CHARACTER = 7.0


def allocation(found: Findings) -> Element:
    """Nodes with their replicas, then one row per workload and config."""
    decision = found.decision
    keys = letters(decision["workloads"])
    kinds = nodes(decision["allocation"], decision["gpus"], found.gpus_per_node)
    left = sum(many for many, _ in kinds[_MOST:])
    free = decision["gpus"] - decision["gpus_used"]
    slot = _WIDE / max(found.gpus_per_node, _FEWEST)
    return section(
        "allocation",
        "What to run",
        element(
            "p",
            f"{decision['gpus_used']:,} of {count(decision['gpus'], 'GPU')} in "
            f"{count(sum(many for many, _ in kinds), 'node')}"
            + (f"; {free:,} stay free." if free else "."),
        ),
        element(
            "div", [_node(many, node, slot, keys) for many, node in kinds[:_MOST]], class_="nodes"
        ),
        element("p", f"{count(left, 'more node')} not drawn; the table has all.") if left else None,
        _table(found, keys)
        if decision["allocation"]
        else element("p", "No replica is certain to serve anybody yet."),
    )


def _node(many: int, node: Node, slot: float, keys: Mapping[str, str]) -> Element:
    width, taken = slot * node.gpus, sum(block.gpus for block in node.blocks)
    title = f"{count(many, 'node')} of {count(node.gpus, 'GPU')}, {node.gpus - taken} free each"
    free = [
        element("rect", x=slot * at + 1, y=3, width=slot - 2, height=_HEIGHT - 6, class_="free")
        for at in range(taken, node.gpus)
    ]
    picture = element(
        "svg",
        element("title", title),
        element("desc", "; ".join(_words(block) for block in node.blocks) or "nothing"),
        element("rect", x=0.5, y=0.5, width=width - 1, height=_HEIGHT - 1, rx=5, class_="frame"),
        *free,
        *(_block(block, slot, keys[block.workload]) for block in node.blocks),
        viewBox=f"0 0 {_WIDE} {_HEIGHT}",
        role="img",
        class_="node",
        aria_label=f"{title}: " + ("; ".join(_words(b) for b in node.blocks) or "nothing"),
    )
    return element("figure", picture, element("figcaption", f"× {many:,}") if many > 1 else None)


def _block(block: Block, slot: float, letter: str) -> Element:
    x, width = slot * block.first + _GAP / 2, slot * block.gpus - _GAP
    fits = int((width - 4) / _CHARACTER)
    return element(
        "g",
        element("title", _words(block)),
        element("rect", x=x, y=3, width=width, height=_HEIGHT - 6, rx=3, class_=colour(letter)),
        label(x + width / 2, 19, letter, anchor="middle", kind="letter") if width >= 12 else None,
        label(x + width / 2, 35, short_name(block.config, fits), anchor="middle")
        if fits >= 2
        else None,
        class_="block",
    )


def _words(block: Block) -> str:
    return f"{block.workload} on {block.config}, {count(block.gpus, 'GPU')}"


def _table(found: Findings, keys: Mapping[str, str]) -> Element:
    titles = ("workload", "config", "replicas", "GPUs", "load of each", "capacity of each", "")
    rows = [
        (
            [key(keys[row["workload"]]), " ", name(row["workload"])],
            name(row["config"]),
            f"× {row['replicas']:,}",
            number(row["gpus"]),
            load(row["load"], found.kinds.get(row["workload"])),
            f"{span(row['capacity']['lower'], row['capacity']['upper'])} req/s",
            "measured" if row["measured"] else "not measured",
        )
        for row in found.decision["allocation"]
    ]
    return table("Replicas by workload and config", titles, rows, left=2)
