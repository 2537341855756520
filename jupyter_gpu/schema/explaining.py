"""What is wrong with a value, in words that a person can act on: where, what, and what was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from reprlib import Repr
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from jupyter_gpu.errors import InvalidRequestError

_MOST = 5
_LONGEST = 80
_REPR = Repr()
"""For what may hold itself, or one thing thousands of times, as the aliases of YAML allow."""
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _LONGEST
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 2 * _LONGEST

_WORDS = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "must be text",
    "string_pattern_mismatch": "must look like {pattern}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} characters",
    "dict_type": "must be a mapping of names to values",
    "mapping_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
    "model_attributes_type": "must be a mapping of names to values",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "path_type": "must be a path",
    "enum": "must be one of {expected}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "{discriminator} can't be '{tag}'; it is one of {expected_tags}",
    "union_tag_not_found": "{discriminator} is missing",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "json_invalid": "is no JSON: {error}",
    "recursion_loop": "holds itself",
}
"""By pydantic's own names of its errors; what is not here keeps pydantic's words."""


def checked(schema: Any, value: Any, root: str) -> Any:
    """Return a value as what it should be.

    Args:
        schema: a class of the schema, or any type that pydantic knows.
        value: what was given.
        root: what it is called; empty where its parts speak for themselves.

    Raises:
        InvalidRequestError: it is none; the message says what is wrong where.
    """
    try:
        return TypeAdapter(schema).validate_python(value)
    except ValidationError as error:
        raise InvalidRequestError(explain(error, root, schema, value)) from error


def explain(error: ValidationError, root: str, schema: Any = None, given: Any = None) -> str:
    """Return what is wrong with a value, in one line.

    Args:
        error: what pydantic says.
        root: what the whole value is called; empty where its parts speak for themselves.
        schema: what it should be; with it, the names that could have been meant are named.
        given: the whole value; with it, an entry of a list is called by its own name.
    """
    wrongs = [_explained(dict(detail), root, schema, given) for detail in error.errors(include_url=False)]
    more = f"; and {len(wrongs) - _MOST} more" if len(wrongs) > _MOST else ""
    return "; ".join(wrongs[:_MOST]) + more


def _explained(detail: dict[str, Any], root: str, schema: Any, given: Any) -> str:
    where, holder = _follow(detail["loc"], root, schema, given)
    kind, value = detail["type"], detail["input"]
    context = {name: f"{v:g}" if isinstance(v, float) else v for name, v in detail.get("ctx", {}).items()}
    if kind == "extra_forbidden":
        return f"{where}: {_no_such(str(detail['loc'][-1]), holder)}"
    words = _WORDS[kind].format(**context) if kind in _WORDS else detail["msg"].removeprefix("Value error, ")
    is_whole = isinstance(value, Mapping | list | tuple | BaseModel) and not kind.endswith("_type")
    is_said = kind == "missing" or is_whole or (kind == "value_error" and repr(value) in words)
    shown = "" if is_said else f" (given: {_short(value)})"
    return f"{where}{' ' if kind == 'missing' else ': '}{words}{shown}" if where else words + shown


def _short(value: Any) -> str:
    shown = "nothing" if value is None else _REPR.repr(value) if isinstance(value, list | dict | tuple) else repr(value)
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "..."


def _no_such(name: str, holder: type[BaseModel] | None) -> str:
    if holder is None:
        return "there is no such setting"
    known = [field.alias or key for key, field in holder.model_fields.items()]
    meant = get_close_matches(name, known, 1)
    return "there is no such setting; " + (f"{meant[0]!r} may be meant, and " if meant else "") + f"there are {', '.join(known)}"


def _follow(loc: tuple[int | str, ...], root: str, schema: Any, given: Any) -> tuple[str, type[BaseModel] | None]:
    """Return the path as a person would write it, and the class that the last part should be a field of, where known."""
    path, types, holder = root, [schema], None
    for part in loc:
        models = [found for one in types for found in _models(one)]
        tagged = [model for model in models if part in _tags(model)]
        if len(models) > 1 and tagged:  # the tag of a union ('local', 'kubernetes') stands in the path although nobody wrote it
            types = list(tagged)
            continue
        holder = models[0] if models else None
        types = [below for one in types for below in _below(one, part)]
        given = _part_of(given, part)
        path += _step(part, given)
    return path.removeprefix("."), holder


def _step(part: int | str, given: Any) -> str:
    if isinstance(part, int):
        name = given.get("name") if isinstance(given, Mapping) else None
        return _step(name, None) if isinstance(name, str) else f"[{part}]"
    return f".{part}" if part.replace("-", "_").isidentifier() else f"[{part!r}]"


def _part_of(given: Any, part: int | str) -> Any:
    """Return a part of what was given: by its place in a list, or by its name in a mapping that stands for one."""
    if isinstance(given, Mapping):
        if isinstance(part, int) and part not in given and part < len(given):
            name, value = list(given.items())[part]
            return {"name": name, **(value if isinstance(value, Mapping) else {})}
        return given.get(part)
    if isinstance(given, list | tuple) and isinstance(part, int) and part < len(given):
        return given[part]
    return None


def _alternatives(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from _alternatives(one)
    else:
        yield annotation


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    return (one for one in _alternatives(annotation) if isinstance(one, type) and issubclass(one, BaseModel))


def _tags(model: type[BaseModel]) -> set[Any]:
    return {field.default for field in model.model_fields.values() if isinstance(field.default, str) and field.default}


def _below(annotation: Any, part: int | str) -> Iterator[Any]:
    for one in _alternatives(annotation):
        if isinstance(one, type) and issubclass(one, BaseModel):
            field = one.model_fields.get(str(part)) or next((f for f in one.model_fields.values() if f.alias == part), None)
            if isinstance(field, FieldInfo):
                yield field.annotation
        elif len(arguments := [argument for argument in get_args(one) if argument is not ...]) > 0:
            yield arguments[-1]  # of a mapping its values, of a list or tuple its entries
