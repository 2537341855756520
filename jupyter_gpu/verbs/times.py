"""Times and durations as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def duration(text: str) -> timedelta:
    """Return how long: ``90s``, ``10m``, ``1h30m``, ``2d``.

    Raises:
        click.BadParameter: it is no duration.
    """
    found = _duration(text)
    if not found:  # none, or no time at all
        raise click.BadParameter(f"{text!r} is no duration; write it like 90s, 10m, 1h30m or 2d")
    return found


def since(text: str) -> datetime:
    """Return a time: so long ago, ``1h30m``; a date of this machine's, ``2030-01-31``; or a time with its zone (RFC 3339).

    Raises:
        click.BadParameter: it is none.
    """
    time = None
    try:
        if (ago := _duration(text)) is not None:
            time = datetime.now(UTC) - ago
        else:
            time = datetime.fromisoformat(text)
            time = time.astimezone() if _DATE.fullmatch(text) else time
        if time.tzinfo is not None:
            time.astimezone(UTC), time.astimezone()  # whoever compares or shows it needs both
    except (ValueError, OverflowError):
        time = None
    if time is None or time.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is no time; write 10m, 1h30m, a date like 2030-01-31, or with its zone 2030-01-31T12:00:00Z"
        )
    return time


def _duration(text: str) -> timedelta | None:
    if not re.fullmatch(r"(\d{1,9}[smhd])+", text):
        return None
    try:
        return sum((timedelta(**{_UNITS[unit]: float(count)}) for count, unit in re.findall(r"(\d+)([smhd])", text)), timedelta())
    except OverflowError:
        return None
