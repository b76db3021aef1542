"""Tests of entities: encoded, decoded and described by one class; hostile JSON is refused with a path."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from organs.registry import entities
from organs.registry.entities.base import Count, Digest, Entity, Page, Time, Word, decode, encode, schemas
from organs.registry.entities.plan import RecipeFile

ROOT = Path(__file__).resolve().parents[1]
DIGEST = "ab" * 32


class Thing(Entity, frozen=True, kw_only=True):
    """A thing."""

    digest: Digest
    kind: Word
    count: Count | None
    at: Time
    share: float | None = None


class ThingPage(Page[Thing], frozen=True, kw_only=True):
    """Things."""


THING = b'{"digest":"%s","kind":"a","count":1,"at":"2026-01-02T03:04:05Z"}' % DIGEST.encode()

FIRST_USES = """
import sys, threading
from contextlib import suppress
from organs.registry.entities.base import Entity, decode
from tests.test_entities import entities_below

def decode_all():
    start.wait()
    for kind in kinds:
        members = ",".join('"%s": {}' % name for name in kind.__struct_encode_fields__)
        with suppress(ValueError):
            decode(b"{%s}" % members.encode(), kind)

kinds = list(entities_below(Entity))
sys.setswitchinterval(1e-6)
start = threading.Barrier(8)
threads = [threading.Thread(target=decode_all) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(kinds))
"""
"""A program whose threads decode each entity, all at the same time."""


def test_an_entity_reads_back_unchanged() -> None:
    page = ThingPage(items=(decode(THING, Thing),), next="x", notes=("y",))
    again = decode(encode(page), ThingPage)
    assert again == page
    assert decode(THING[:-1] + b',"new":{"x":[1]}}', Thing) == page.items[0], "a member of a newer server"
    assert [entry.at for entry in again] == [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)]
    assert len(again) == 1


@pytest.mark.parametrize(
    ("found", "sent", "place"),
    [
        (b'"kind":"a"', b'"kind":"a\\n"', "$.kind"),
        (b'"kind":"a"', b'"kind":"\\u001b[2J"', "$.kind"),
        (b'"kind":"a"', b'"kind":"%s"' % (b"a" * 211), "$.kind"),
        (b'"kind":"a"', b'"kind":5', "$.kind"),
        (b'"count":1', b'"count":-1', "$.count"),
        (b'"count":1', b'"count":1.5', "$.count"),
        (b'"count":1', b'"count":true', "$.count"),
        (b'"count":1', b'"count":123456789012345678901234567890', "$.count"),
        (b'"count":1', b'"count":1,"share":1e999', "$.share"),
        (b'"digest":"ab', b'"digest":"AB', "$.digest"),
        (b'"kind":"a",', b"", "kind"),
        (b"05Z", b"05", "$.at"),
        (b"{", b"[" * 100_000, "object"),
        (b'"kind":"a"', b'"kind":NaN', "malformed"),
    ],
)
def test_hostile_json_is_refused_with_the_path_of_its_fault(found: bytes, sent: bytes, place: str) -> None:
    assert found in THING
    with pytest.raises(ValueError, match=r".") as refused:
        decode(THING.replace(found, sent, 1), Thing)
    assert place in str(refused.value)


def test_a_schema_names_all_members_and_allows_no_others() -> None:
    described = schemas([ThingPage])
    assert set(described) == {"Thing", "ThingPage"}
    assert described["Thing"]["description"] == "A thing."
    assert described["Thing"]["required"] == ["digest", "kind", "count", "at", "share"]
    assert all(schema["additionalProperties"] is False for schema in described.values())


def test_every_integer_of_an_entity_has_both_bounds() -> None:
    unbounded = {
        f"{kind.__name__}.{field.name}"
        for kind in entities_below(Entity)
        for field in msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
        for inner in _types(field.type)
        if isinstance(inner, msgspec.inspect.IntType)
        and None in (inner.ge, inner.le)
        and field.name not in OF_RECIPES
        and kind.__module__.startswith(entities.__name__)
    }
    assert unbounded == set(), "use Count or Bytes: integers in Python have no limit"


OF_RECIPES = {"blocks", "experts", "keep", "drop", "metadata"}
"""Members of recipes, which the reader of recipes checks."""


def test_an_unknown_member_of_a_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match="strength"):
        decode(b'{"base":"a/b","grafts":[{"from":"c/d","strength":0.5}]}', RecipeFile)


def test_threads_may_decode_each_entity_for_the_first_time_concurrently() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USES], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100


def entities_below(kind: type[Entity]) -> Iterator[type[Entity]]:
    for module in pkgutil.iter_modules(entities.__path__):
        importlib.import_module(f"{entities.__name__}.{module.name}")
    for child in kind.__subclasses__():
        if not getattr(child, "__parameters__", ()):
            yield child
        yield from entities_below(child)


def _types(kind: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Yield `kind` and the types in it, but for those of other entities."""
    yield kind
    inner = [getattr(kind, name) for name in ("type", "item_type", "key_type", "value_type") if hasattr(kind, name)]
    for inner_type in [*inner, *getattr(kind, "item_types", ()), *getattr(kind, "types", ())]:
        if isinstance(inner_type, msgspec.inspect.Type):
            yield from _types(inner_type)
