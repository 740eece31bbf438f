"""A YAML document whose text reads the same in every YAML, under comments of one line each."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from fleetsieve.show import printable

# YAML 1.1, which PyYAML writes, and 1.2 disagree on what a few plain words and numbers are.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_NO_TEXT = {"n", "no", "null", "off", "on", "true", "false", "y", "yes"}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT
    style = None if plain else "|" if "\n" in value else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def comments(lines: Iterable[str]) -> str:
    """`lines` as comments of YAML or a shell, whatever a file put into them."""
    return "".join(f"# {printable(line)}\n" for line in lines)


def written(documents: Iterable[Mapping[str, Any]], head: Iterable[str]) -> str:
    """YAML documents under a head of comments."""
    texts = [
        yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=2**20)
        for document in documents
    ]
    return comments(head) + "---\n".join(texts)


def literal(text: str) -> str:
    """`text` for a place where Compose or Kubernetes would put variables in for `$`."""
    return text.replace("$", "$$")
