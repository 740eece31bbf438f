"""YAML text as plain values, with the refusals that PyYAML lacks."""

from pathlib import Path
from typing import Any

import yaml

from fleetsieve.errors import InputError

MAX_BYTES = 10_000_000
MAX_NODES = 200_000
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What PyYAML raises, beside its own error, for values such as 2024-13-45 or !!bool maybe.
_BAD_VALUE = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: the file is missing, no file, unreadable, over `MAX_BYTES` or not UTF-8.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory; name a file in it")
        if path.exists() and not path.is_file():  # a device or a pipe may never end
            raise InputError(f"{path} is no ordinary file; name one")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path} has {size} bytes; at most {MAX_BYTES} are read")
        text = path.read_bytes().decode("utf-8-sig")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; name an existing file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give a text file in UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read: {reason}; give a readable file") from None
    return text


def parse(text: str, source: str) -> Any:
    """The value that YAML (or JSON) text stands for.

    Raises:
        InputError: a syntax error, a key given twice, more than `MAX_NODES` values once aliases
            are expanded, or an alias of something inside itself.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check(node, source)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except InputError:
        raise
    except yaml.YAMLError as error:
        raise InputError(f"{source}{_syntax(error)}; give valid YAML or JSON") from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply; a few levels are enough") from None
    except _BAD_VALUE as error:
        raise InputError(
            f"{source} has a value that YAML cannot read ({error}); write it in quotes"
        ) from None


def _syntax(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = f", line {mark.line + 1}" if mark else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    return f"{line}: {problem or 'it cannot be parsed'}"


def _check(root: yaml.Node, source: str) -> None:
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def expanded(node: yaml.Node) -> int:
        if id(node) in open_nodes:
            line = node.start_mark.line + 1
            raise InputError(f"{source}, line {line}: an alias contains itself; write it out")
        if id(node) not in sizes:
            open_nodes.add(id(node))
            sizes[id(node)] = 1 + sum(expanded(child) for child in _children(node, source))
            open_nodes.remove(id(node))
        return sizes[id(node)]

    if expanded(root) > MAX_NODES:
        raise InputError(
            f"{source} expands to {expanded(root)} values; at most {MAX_NODES} are accepted"
        )


def _children(node: yaml.Node, source: str) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        _refuse_duplicates(node, source)
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _refuse_duplicates(node: yaml.MappingNode, source: str) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        name = (key.tag, key.value)
        if name in lines:
            raise InputError(
                f"{source}, line {line}: the key {key.value!r} is given twice, "
                f"first in line {lines[name]}; keep one"
            )
        lines[name] = line
