"""Any text to a valid object name: one function, so that no two parts of the house disagree."""

from __future__ import annotations

import hashlib
import re
import unicodedata

NAME_LENGTH = 40  # leaves room for what others append (pod suffixes, replica numbers) below 63
_HASH_LENGTH = 8


def object_name(text: str, *, length: int = NAME_LENGTH) -> str:
    """Return a DNS label (RFC 1123) for any text: lower-case letters, digits and dashes, a letter first.

    A text that is already such a label of at most ``length`` characters, and does not end like a hash of ours, is its own name.
    Every other one is shortened and
    gets a hash of the original, so that different texts have different names; an empty readable part becomes ``x``.

    Args:
        text: anything, of any length and script.
        length: the most characters the name may have, at least 10.
    """
    looks_hashed = re.search(rf"-[0-9a-f]{{{_HASH_LENGTH}}}$", text)  # it could be another text's name
    if len(text) <= length and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", text) and not looks_hashed:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    folded = unicodedata.normalize("NFKD", text[:1000]).encode("ascii", "ignore").decode().lower()
    readable = re.sub(r"[^a-z0-9]+", "-", folded).strip("-")[: length - _HASH_LENGTH - 1].strip("-")
    if not readable[:1].isalpha():
        readable = f"x-{readable}"[: length - _HASH_LENGTH - 1].strip("-")
    return f"{readable}-{digest}"
