"""Tests of the header entries of a chimera that differ from its base's, and of the name of its file."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

from organs.registry.compose.lock import LOCK_KEY, lock_of
from organs.registry.compose.metadata import default_name, file_stem
from organs.registry.compose.parents import Parent
from organs.registry.compose.plan import Plan
from organs.registry.gguf import Header, KeyValue, MemorySource, ValueType, carry_over, read_header
from organs.registry.gguf.read import read_array
from organs.registry.gguf.split import SPLIT_COUNT_KEY, SPLIT_NUMBER_KEY, SPLIT_TENSORS_KEY
from organs.registry.names import name_from_text, parse_model_name
from tests.compose.memory_library import plan_in_memory
from tests.compose.parents import HeaderValue, model_tensors, parent_from, synthetic_parent
from tests.gguf_files import array, file_bytes, text, unsigned
from tests.small_models import token_array

KEPT = [
    text("general.architecture", "llama"),
    text("general.type", "model"),
    text("general.license", "apache-2.0"),
    text("general.license.name", "Apache 2"),
    array("general.languages", ValueType.STRING, [b"a", b"\xff"]),
    array("general.datasets", ValueType.STRING, []),
    unsigned("llama.block_count", 2),
    unsigned("llama.embedding_length", 64, ValueType.UINT64),
    KeyValue("llama.rope.freq_base", ValueType.FLOAT32, 10_000.0),
    text("tokenizer.ggml.model", "gpt2"),
    token_array([b"token %d \xff" % number for number in range(96)]),
    text("tokenizer.chat_template", "{{ messages }}"),
    text("general.sourced", "no key of a group, though it begins like one"),
    text("acme.description", "Kept."),
    text("general.descriptions", "no key that is dropped, though it is nearly one"),
    text("acme.odd", b"\xff\x00"),
]
DROPPED = [
    text("general.description", "Trained from scratch."),
    text("general.uuid", "u"),
    text("general.doi", "d"),
    text("general.url", "https://example.org"),
    text("general.repo_url", "https://example.org/repo"),
    text("general.quantized_by", "somebody"),
    array("general.tags", ValueType.STRING, [b"base"]),
    text("general.source.url", "s"),
    text("general.base_model.7.name", "Old"),
    text("quantize.imatrix.file", "i"),
    unsigned("quantize.imatrix.entries_count", 5, ValueType.INT32),
    unsigned(SPLIT_NUMBER_KEY, 0, ValueType.UINT16),
    unsigned(SPLIT_COUNT_KEY, 1, ValueType.UINT16),
    unsigned(SPLIT_TENSORS_KEY, 9, ValueType.INT32),
    text(LOCK_KEY, "{}"),
]
SET = [
    text("general.name", "The Base"),
    unsigned("general.base_model.count", 9),
    unsigned("general.file_type", 1),
    unsigned("general.quantization_version", 2),
]
GRAFT = '{"base": "base", "grafts": [{"from": "donor", "type": "organ", "blocks": 1}]'


@cache
def base() -> Parent:
    entries = [entry for three in zip(KEPT, DROPPED, strict=False) for entry in three]
    entries += [KEPT[-1], *SET]
    return parent_from(file_bytes(entries, model_tensors(), 64), "base")


@cache
def donor(name: str | None = "The Donor", seed: int = 0, dtype: str = "F16") -> Parent:
    dtypes = dict.fromkeys((spec.name for spec, _ in model_tensors() if len(spec.shape) > 1), dtype)
    more = {"general__version": "v2", "general__url": "https://example.org/d", "general__author": "A"}
    return synthetic_parent("donor", tensors=model_tensors(seed, dtypes=dtypes), general__name=name, **more)


def made(plan: Plan) -> tuple[Header, MemorySource]:
    """Return the header of `plan`, written and read."""
    lock = plan.lock()
    data = plan.header(lock)
    source = MemorySource(data.ljust(plan.size_bytes, b"\0"))
    header = read_header(source)
    assert lock_of(header, source) == lock
    return header, source


def composed(recipe: str = GRAFT + "}", *parents: Parent) -> tuple[Header, MemorySource]:
    return made(plan_in_memory(recipe, *(parents or (base(), donor()))))


def test_kept_entries_are_copied_byte_for_byte_in_order() -> None:
    header, source = composed()
    kept = [entry.key for entry in KEPT]
    assert [field.key for field in header.fields if field.key in kept] == kept
    for key in kept:
        field, own = header.field(key), base().header.field(key)
        assert field is not None
        assert own is not None
        assert carry_over(source, field) == carry_over(base().source, own)
    assert header.alignment == 64


def test_every_key_of_the_base_is_kept_set_or_dropped() -> None:
    header, _ = composed()
    ours = {field.key for field in base().header.fields}
    new = {field.key for field in header.fields} - ours
    assert new == {
        *("general.base_model.0.name", "general.base_model.1.name", "general.base_model.1.author"),
        *("general.base_model.1.version", "general.base_model.1.url", "general.base_model.0.url"),
        *("general.base_model.0.uuid", "general.base_model.0.doi", "general.base_model.0.repo_url"),
    }
    dropped = {entry.key for entry in DROPPED}
    assert ours - {field.key for field in header.fields} == dropped - {LOCK_KEY}
    assert plan_in_memory(GRAFT + "}", base(), donor()).drops == tuple(sorted(dropped))
    assert header.fields[-1].key == LOCK_KEY


def test_parents_have_the_names_in_their_own_headers_the_base_first() -> None:
    header, _ = composed()
    assert header.integer("general.base_model.count") == 2
    assert header.text("general.base_model.0.name") == "The Base"
    assert header.text("general.base_model.1.name") == "The Donor"
    assert header.text("general.base_model.1.version") == "v2"
    assert header.text("general.name") == "The Base × The Donor"


def test_no_name_of_a_registry_is_in_the_header() -> None:
    data = made(plan_in_memory(GRAFT + "}", base(), donor(None)))[1].data
    assert b"donor" not in data
    assert header_says(data, "general.base_model.1.name") is None
    assert header_says(data, "general.name") == "The Base × unnamed"


def header_says(data: bytes, key: str) -> str | None:
    return read_header(MemorySource(data)).text(key)


def test_more_than_three_parents_are_counted() -> None:
    parents = [synthetic_parent(name, tensors=[], general__name=name) for name in "ABCDE"]
    assert default_name(parents[:1]) == "A, recomposed"
    assert default_name([parents[0], parents[0]]) == "A, recomposed"
    assert default_name(parents[:3]) == "A × B × C"
    assert default_name(parents) == "A × B × C × 2 more"


def test_the_file_type_follows_from_most_of_the_bytes() -> None:
    few, _ = composed(GRAFT + "}", base(), donor(dtype="Q8_0"))
    assert few.integer("general.file_type") == 1
    whole = '{"base": "base", "grafts": [{"from": "donor", "type": ["organ", "skeleton", "embed"]}]}'
    most, _ = composed(whole, base(), donor(dtype="Q8_0"))
    assert most.integer("general.file_type") == 7


def test_a_base_without_them_gets_a_file_type_and_the_version_of_its_quantised_blocks() -> None:
    plain = synthetic_parent("base")
    header, _ = composed(GRAFT + "}", plain, donor())
    assert (header.integer("general.file_type"), header.field("general.quantization_version")) == (1, None)
    header, _ = composed(GRAFT + "}", plain, donor(dtype="Q8_0"))
    assert header.integer("general.quantization_version") == 2


def test_entries_of_the_recipe_win_even_over_dropped_ones() -> None:
    metadata = {"general.name": "Mine", "general.url": "https://example.org/mine", "acme.new": ["x", "ü"]}
    plan = plan_in_memory(f'{GRAFT}, "metadata": {json.dumps(metadata)}}}', base(), donor())
    header, source = made(plan)
    assert header.text("general.name") == "Mine"
    assert header.text("general.url") == "https://example.org/mine"
    assert "general.url" not in plan.drops
    field = header.field("acme.new")
    assert field is not None
    assert read_array(source, field) == [b"x", "ü".encode()]
    keys = [field.key for field in header.fields]
    assert keys.index("general.url") < keys.index("acme.new"), "what the base has stays where it was"


@pytest.mark.parametrize(
    ("value", "own", "kind"),
    [
        ("true", None, ValueType.BOOL),
        ("5", None, ValueType.UINT32),
        ("-5", None, ValueType.INT32),
        ("4294967296", None, ValueType.INT64),
        ("9223372036854775808", None, ValueType.UINT64),
        ("5", ValueType.UINT8, ValueType.UINT8),
        ("256", ValueType.UINT8, ValueType.UINT32),
        ("5", ValueType.STRING, ValueType.UINT32),
        ("1.5", ValueType.FLOAT64, ValueType.FLOAT64),
        ("1e300", None, ValueType.FLOAT64),
        ("-1e300", ValueType.FLOAT32, ValueType.FLOAT64),
        ("3.4028234663852886e38", None, ValueType.FLOAT32),
        ("3.4028235677973366e38", None, ValueType.FLOAT64),
        ('"2"', ValueType.FLOAT32, ValueType.STRING),
    ],
)
def test_a_number_keeps_the_bases_type_where_it_fits(value: str, own: ValueType | None, kind: ValueType) -> None:
    more = []
    if own is not None:
        more = [text("acme.x", "1") if own is ValueType.STRING else KeyValue("acme.x", own, 1)]
    plain = [text("general.architecture", "llama"), *more]
    parent = parent_from(file_bytes(plain, model_tensors(blocks=0)), "base")
    header, _ = composed(f'{{"base": "base", "metadata": {{"acme.x": {value}}}}}', parent)
    field = header.field("acme.x")
    assert field is not None
    assert field.type is kind
    assert field.value == pytest.approx(json.loads(value)) or kind in {ValueType.STRING, ValueType.BOOL}


def test_the_tensors_keep_the_order_of_the_base_with_their_new_types() -> None:
    header, _ = composed(GRAFT + "}", base(), donor(dtype="Q8_0"))
    assert [tensor.name for tensor in header.tensors] == [part.name for part in base().parts]
    changed = {tensor.name for tensor in header.tensors if tensor.dtype.name == "Q8_0"}
    assert changed == {f"blk.1.ffn_{way}.weight" for way in ("gate", "up", "down")}


TENSORS = model_tensors(blocks=0)


def stem(own: str | None, said: dict[str, HeaderValue], *sets: KeyValue) -> str:
    keys = {f"general__{key}": value for key, value in said.items()}
    return file_stem(synthetic_parent(tensors=TENSORS, **keys), sets, own)


@pytest.mark.parametrize(
    ("said", "name", "expected"),
    [
        ({"name": "Zoo A", "file_type": 1}, None, "Zoo-A-Chimera-v1.0-F16"),
        ({"basename": "Zoo-A", "name": "x", "size_label": "2M", "file_type": 7}, None, "Zoo-A-2M-Chimera-v1.0-Q8_0"),
        ({"name": "Zoo", "file_type": 15, "version": "v2.3"}, "acme/Coder", "Zoo-Coder-v2.3-Q4_K_M"),
        ({"name": "Zoo", "file_type": 15, "version": "final"}, None, "Zoo-Chimera-v1.0-Q4_K_M"),
        ({"name": "Zoo 1.5 (new)", "size_label": "1.5B", "file_type": 0}, None, "Zoo-1-5-new-1-5B-Chimera-v1.0-F32"),
        ({"name": "动物", "file_type": 1}, None, "Chimera-v1.0-F16"),
        ({"name": "../../etc/passwd\n", "file_type": 1}, "a/b.c", "etc-passwd-b-c-v1.0-F16"),
        ({"name": "x" * 5000, "file_type": 1}, None, "x" * 40 + "-Chimera-v1.0-F16"),
        ({"name": "Zoo", "file_type": 99}, None, "Zoo-Chimera-v1.0-mixed"),
    ],
)
def test_the_stem_consists_of_words_of_the_base(said: dict[str, HeaderValue], name: str | None, expected: str) -> None:
    found = stem(name, said)
    assert found == expected
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", found)
    assert parse_model_name(name_from_text(found)).name == found


def test_the_type_that_the_chimera_sets_is_in_its_file_name() -> None:
    entries: dict[str, HeaderValue] = {"name": "Zoo", "file_type": 1}
    assert stem(None, entries, unsigned("general.file_type", 7)) == "Zoo-Chimera-v1.0-Q8_0"


def edited(metadata: dict[str, object], *parents: Parent) -> Plan:
    """Return the plan of a recipe that only sets metadata."""
    return plan_in_memory(json.dumps({"base": "base", "metadata": metadata}), *(parents or (base(),)))


def codes(plan: Plan) -> set[tuple[str, str]]:
    return {(finding.severity.value, finding.code) for finding in plan.findings}


def test_a_recipe_of_metadata_alone_changes_only_these_keys_and_drops_those_of_split_files() -> None:
    plan = edited({"tokenizer.chat_template": "{{ bos_token }}", "general.name": "Mine"})
    assert {entry.key: entry.value for entry in plan.sets} == {
        "tokenizer.chat_template": "{{ bos_token }}", "general.name": "Mine",
    }  # fmt: skip
    assert set(plan.drops) == {SPLIT_NUMBER_KEY, SPLIT_COUNT_KEY, SPLIT_TENSORS_KEY, LOCK_KEY}
    header, _ = made(plan)
    assert header.text("general.description") == "Trained from scratch."
    assert header.text("tokenizer.chat_template") == "{{ bos_token }}"
    changed = "tokenizer.chat_template and general.name"
    assert plan.screen.sentence == f"The weights stay the same. Changed in the header: {changed}."
    assert plan.acts == ("edited",)


def test_keys_of_a_split_file_are_dropped_without_any_other_change() -> None:
    whole = synthetic_parent("base", split__count=None)
    assert ("refuse", "nothing-to-do") in codes(edited({}, whole))
    stale = parent_from(file_bytes([KEPT[0], unsigned(SPLIT_COUNT_KEY, 3)], model_tensors()), "base")
    assert edited({}, stale).drops == (SPLIT_COUNT_KEY,)
    assert edited({}, stale).can_be_made


def test_named_chat_templates_are_listed() -> None:
    names = array("tokenizer.chat_templates", ValueType.STRING, [b"tool_use"])
    named = parent_from(file_bytes([KEPT[0], names], model_tensors()), "base")
    header, source = made(edited({"tokenizer.chat_template.rag": "{{ 1 }}"}, named))
    listed = header.field("tokenizer.chat_templates")
    assert listed is not None
    assert read_array(source, listed) == [b"tool_use", b"rag"]
    assert [entry.key for entry in edited({"tokenizer.chat_template.tool_use": "x"}, named).sets] == [
        "tokenizer.chat_template.tool_use"
    ]


@pytest.mark.parametrize(
    ("template", "is_read"),
    [
        ("{% for message in messages %}{{ message }}{% endfor %}", True),
        ("{%- generation %}{{ 1 }}{% endgeneration -%}{% break %}", True),
        ("{{ broken ", False),
        ("{% for %}", False),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", False),
    ],
)
def test_a_chat_template_that_cannot_be_parsed_is_a_warning(template: str, is_read: bool) -> None:
    warned = ("warn", "template-unread") in codes(edited({"tokenizer.chat_template": template}))
    assert warned != is_read


def test_another_architecture_takes_the_hyperparameters_along() -> None:
    each = array("llama.attention.head_count", ValueType.INT32, [4, 2])
    flags = array("llama.flags", ValueType.BOOL, [True, False])
    entries = [KEPT[0], unsigned("llama.block_count", 2), KEPT[8], each, flags, text("llama.kind", "a")]
    parent = parent_from(file_bytes(entries, model_tensors()), "base")
    plan = edited({"general.architecture": "mistral"}, parent)
    assert ("warn", "architecture-renamed") in codes(plan)
    header, source = made(plan.accepting_all())
    assert header.architecture == "mistral"
    assert [field.key for field in header.fields if field.key.startswith("llama.")] == []
    assert header.integer("mistral.block_count") == 2
    assert header.text("mistral.kind") == "a"
    for key, values in (("mistral.attention.head_count", [4, 2]), ("mistral.flags", [1, 0])):
        field = header.field(key)
        assert field is not None
        assert list(read_array(source, field)) == values


@pytest.mark.parametrize(
    ("metadata", "entries"),
    [
        ({"general.architecture": "a b"}, []),
        ({"general.architecture": 5}, []),
        ({"general.architecture": "new"}, [text("llama.odd", b"\xff")]),
        ({"general.architecture": "new"}, [KeyValue("llama.odd", ValueType.FLOAT32, float("nan"))]),
        ({"general.architecture": "new"}, [array("llama.odd", ValueType.STRING, [b"\xff"])]),
        ({"general.architecture": "new"}, [array("llama.long", ValueType.UINT8, [0] * 5000)]),
        ({"llama.block_count": 3}, []),
    ],
)
def test_what_cannot_be_renamed_is_refused(metadata: dict[str, object], entries: list[KeyValue]) -> None:
    parent = parent_from(file_bytes([KEPT[0], *entries], model_tensors()), "base")
    assert ("refuse", "bad-metadata") in codes(edited(metadata, parent))
