"""Any text becomes a valid object name."""

from __future__ import annotations

import random
import re

import pytest

from jupyter_gpu.names import NAME_LENGTH, object_name

RFC_1123 = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

STRANGE = [
    "",
    " ",
    "🚀",
    "🚀🚀🚀 GPU 🚀",
    "../..",
    "-",
    "a-",
    "-a",
    "9lives",
    "UPPER",
    "Ünïcödé Ñame",
    "名前",
    "a_b",
    "a.b",
    "a\nb\0c",
    "a" * 41,
    "a" * 300,
    "9" * 300,
    "-" * 300,
    "名" * 300,
    "\ud800",
    "x" * 30 + "-" * 30,
    "ﬁne ligature",
]


@pytest.mark.parametrize("text", STRANGE)
@pytest.mark.parametrize("length", [10, 11, NAME_LENGTH, 63])
def test_any_text_becomes_a_label_of_rfc_1123_that_starts_with_a_letter(text: str, length: int) -> None:
    name = object_name(text, length=length)
    assert RFC_1123.fullmatch(name)
    assert name[0].isalpha()
    assert len(name) <= length


@pytest.mark.parametrize("name", ["a", "w-1", "train-llama", "a" * 40, "x9", "a--b"])
def test_a_valid_name_is_its_own_name(name: str) -> None:
    assert object_name(name) == name


@pytest.mark.parametrize("text", STRANGE)
@pytest.mark.parametrize("length", [10, NAME_LENGTH])
def test_a_name_that_was_made_for_one_text_is_no_others(text: str, length: int) -> None:
    name = object_name(text, length=length)
    assert name == text or object_name(name, length=length) != name


def test_different_texts_have_different_names() -> None:
    alike = ["w 1", "w-1", "W-1", "w_1", "w.1", "w/1", " w-1", "w--1", "w-1-", "ẃ-1", "x" * 300, "x" * 299 + "y", *STRANGE]
    assert len({object_name(text) for text in alike}) == len(set(alike))


def test_what_can_be_read_of_the_text_is_kept() -> None:
    assert re.fullmatch(r"train-llama-7b-[0-9a-f]{8}", object_name("Train Llama (7B)!"))
    assert re.fullmatch(r"creme-brulee-[0-9a-f]{8}", object_name("Crème brûlée"))
    assert re.fullmatch(r"x-[0-9a-f]{8}", object_name("🚀"))


def test_the_same_text_always_has_the_same_name() -> None:
    assert object_name("Train Llama") == "train-llama-" + object_name("Train Llama")[-8:] == object_name("Train Llama")


@pytest.mark.parametrize("seed", range(50))
def test_random_texts_become_names_too(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        text = "".join(chr(chance.randrange(1, 0x3000)) for _ in range(chance.randrange(0, 80)))
        name = object_name(text, length=chance.randint(10, 63))
        assert RFC_1123.fullmatch(name)
        assert name[0].isalpha()
