"""The common ground of the schema: frozen, closed, with units in the names."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

KiB, MiB, GiB = 2**10, 2**20, 2**30

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS |= {f"{_letter}iB": 1024**_power, f"{_letter}i": 1024**_power}  # Kubernetes writes 4Gi
    _UNITS |= {f"{_letter}B": 1000**_power, _letter: 1000**_power}


class Schema(BaseModel):
    """A value of the schema: it can't be changed, and it has no fields but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def parse_bytes(value: Any) -> Any:
    """Return the number of bytes in ``'4GiB'``, ``'512 MB'``, ``'1.5Gi'``; anything but a string is handed through.

    Raises:
        ValueError: the text is no size.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", value)
    unit = next((size for name, size in _UNITS.items() if match and name.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise ValueError(f"{value!r} is no size in bytes; write it like 512MiB, 4GiB or 1.5GB")
    return math.ceil(float(match[1]) * unit)


def format_bytes(size: int) -> str:
    """Return a size for people: ``4 GiB``, ``1.5 MiB``."""
    for unit, name in ((2**40, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time needs its zone; write it in UTC, like 2030-01-31T12:00:00Z")
    return value


def _writable(text: str) -> str:
    if "\0" in text:
        raise ValueError("no operating system takes a NUL character here")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds bytes that are no UTF-8, so it can't be written down") from error
    return text


ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Word = Annotated[str, AfterValidator(_writable)]
Time = Annotated[datetime, AfterValidator(_aware)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PortName = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,13}[a-z0-9])?$")]
