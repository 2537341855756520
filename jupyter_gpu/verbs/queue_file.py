"""The file that sets queues: YAML or JSON, read strictly."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import yaml

from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import QueueSet
from jupyter_gpu.schema.explaining import checked


def read(text: str, name: str) -> QueueSet:
    """Return the queues that a file sets.

    Args:
        text: what stands in it.
        name: what it is called, for the message.

    Raises:
        InvalidRequestError: it can't be read, a name is there twice, or it is no set of queues; the message says where.
    """
    content = _json(text, name) if text.lstrip().startswith("{") else _yaml(text, name)
    if content is None:
        raise InvalidRequestError(f"{name} is empty; `queues: {{}}` alone sets one queue 'default' with everything there is")
    try:
        queues: QueueSet = checked(QueueSet, content, "")
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error}") from error
    if isinstance(content, dict) and "queues" not in content:
        raise InvalidRequestError(f"{name} names no queues; begin it with `queues:`")
    return queues


def _json(text: str, name: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made:
                raise InvalidRequestError(f"{name}: {key!r} is there twice in one place; make it one, or rename one of the two")
            made[key] = value
        return made

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of thousands of digits
        try:
            return _yaml(text, name)  # which may begin with a brace too
        except InvalidRequestError:
            raise InvalidRequestError(f"{name} is no JSON: {error}") from error


def _yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidRequestError(f"{name} can't be read: {_words(error)}") from error


def _words(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return (error.problem or str(error)) + (f", in line {mark.line + 1}" if mark else "")
    return " ".join(str(error).split())


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which by itself takes the last of two equal keys without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    words = f"{key.value!r} is there twice in one place; make it one, or rename one of the two"
                    raise yaml.MarkedYAMLError(None, None, words, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
