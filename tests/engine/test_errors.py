"""Errors: each crosses a process border whole and says something."""

import inspect
import pickle
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from engine import errors

SAMPLES: dict[Any, Any] = {Path: Path("/store"), int: 7, str: "words", tuple[str, ...]: ("words",)}
CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.StoreError) and is_dataclass(value)
]


def sample(error: Any) -> errors.StoreError:
    """One of that class, its fields filled."""
    found: errors.StoreError = error(*(SAMPLES.get(field.type, 7) for field in fields(error)))
    return found


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_is_pickled_with_its_facts(error: Any) -> None:
    original = sample(error)
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is error
    assert vars(copy) == vars(original)
    assert str(copy) == str(original) != ""


@pytest.mark.parametrize("error", CLASSES)
def test_the_text_tells_every_fact(error: Any) -> None:
    text = str(sample(error))
    for field in fields(error):
        assert str(SAMPLES.get(field.type, 7)).strip("(',)") in text or field.name in ("queue", "physical_offset"), (
            field.name
        )


def test_the_tree_on_top_of_the_module_names_every_class() -> None:
    tree = errors.__doc__ or ""
    for error in vars(errors).values():
        if inspect.isclass(error) and issubclass(error, errors.StoreError):
            assert error.__name__ in tree
