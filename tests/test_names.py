"""Tests of model names: valid and invalid names, and the nearest valid name to any text."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.errors import BadName
from organs.registry.names import (
    NAME_MAX_LENGTH,
    RESERVED_ENDINGS,
    RESERVED_NAMESPACES,
    ModelName,
    check_new_name,
    name_from_text,
    namespace_from_text,
    parse_model_name,
    parse_new_name,
    plain_quantisation,
    split_quantisation,
)
from tests.random_files import PATIENT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ModelName("local", "a")),
        ("meta/llama", ModelName("meta", "llama")),
        ("meta/llama@3", ModelName("meta", "llama", 3)),
        ("Qwen3-0.6B_v1.0", ModelName("local", "Qwen3-0.6B_v1.0")),
        ("x" * 96, ModelName("local", "x" * 96)),
        ("0/0@999999999", ModelName("0", "0", 999_999_999)),
    ],
)
def test_a_name_is_parsed_and_written(text: str, expected: ModelName) -> None:
    assert parse_model_name(text) == expected
    assert parse_model_name(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "/a",
        "a/",
        "a/b/c",
        ".",
        "..",
        "a/..",
        "../a",
        "a..b",
        ".hidden",
        "-o",
        "a.",
        "a-",
        "_a",
        "a b",
        "a\n",
        "a\0",
        "a\x1b[31m",
        "ä",
        "٣",
        "a\u202eb",
        "C:\\x",
        "x" * 97,
        "x" * 97 + "/a",
        *("a@", "a@0", "a@-1", "a@1.5", "a@x", "a@1@2", "a@٣", "a@9999999999", "a@ 1", "@1"),
        *("zoo:", ":8b", "a:b:c", "a:b/c", "a/b/c/d:e", "zoo:../x", "zoo:a/b", "sha256:abcd"),
        "x" * 10_000_000,
    ],
)
def test_a_name_that_could_be_a_path_or_is_hostile_is_refused(text: str) -> None:
    with pytest.raises(BadName) as caught:
        parse_model_name(text)
    assert len(str(caught.value)) < 300
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("namespace", sorted(RESERVED_NAMESPACES))
def test_a_namespace_that_is_reserved_for_a_page_is_refused(namespace: str) -> None:
    for text in (f"{namespace}/a", f"{namespace.upper()}/a"):
        with pytest.raises(BadName, match="address of the catalog"):
            parse_model_name(text)
    assert parse_model_name(f"local/{namespace}").name == namespace, "only as a namespace"


@pytest.mark.parametrize("ending", RESERVED_ENDINGS)
def test_a_name_with_a_file_suffix_is_refused(ending: str) -> None:
    for text in (f"a{ending}", f"ns/a{ending.upper()}"):
        with pytest.raises(BadName, match="does not end in"):
            parse_model_name(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Zoo-A-2M-v1.0-F16", "Zoo-A-2M-v1.0-F16"),
        ("My model (final)", "My-model-final"),
        ("../../etc/passwd", "etc-passwd"),
        ("model.json", "model"),
        ("x" * 200, "x" * 96),
        ("x" * 91 + ".gguf" + "y", "x" * 91),
        (".gguf", "gguf"),
        ("a\x1b[31m\n", "a-31m"),
        ("CON", "CON"),
        ("My model – chat v1", "My-model-chat-v1"),
        ("a-.b", "a-b"),
        ("a...b", "a.b"),
        ("model.-.gguf", "model"),
        ("Ünïcode Größe", "Unicode-Grosse"),
        ("Модель-7B", "Model-7B"),
        ("Ελληνικά", "Ellinika"),
        ("ＦＵＬＬ width", "FULL-width"),
    ],
)
def test_the_nearest_name_to_a_text(text: str, expected: str) -> None:
    assert name_from_text(text) == expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [("日本", "model"), ("モデル", "model"), ("Qwen 模型 7B", "Qwen-7B"), ("🦙", "model"), ("", "model")],
)
def test_a_name_has_a_digest_in_place_of_other_letters_than_latin(text: str, kept: str) -> None:
    name = name_from_text(text)
    assert re.fullmatch(rf"{kept}-[0-9a-f]{{8}}", name)
    assert name_from_text(text) == name != name_from_text(f"{text}本")
    assert len(name_from_text(f"{'x' * 200}本")) == NAME_MAX_LENGTH


@pytest.mark.parametrize(
    ("name", "instead"), [("My-model---chat-v1", "My-model-chat-v1"), ("a-.b", "a-b"), ("a--b", "a-b"), ("a.git", "a")]
)
def test_a_new_name_that_stock_clients_refuse_is_refused_and_an_old_one_is_read(name: str, instead: str) -> None:
    with pytest.raises(BadName, match=f"use for example '{instead}'$"):
        check_new_name(name)
    assert parse_model_name(f"local/{name}@2") == ModelName("local", name, 2)


@PATIENT
@given(
    st.text(max_size=120) | st.from_regex(re.compile(r"[a.\-_]{0,99}(\.gguf|\.csv|\.json)*", re.ASCII), fullmatch=True)
)
def test_the_nearest_name_to_any_text_is_a_name_and_its_own_nearest(text: str) -> None:
    name = name_from_text(text)
    assert len(name) <= NAME_MAX_LENGTH
    assert parse_model_name(f"local/{name}") == ModelName("local", name)
    check_new_name(name)
    validate_repo_id(f"local/{name}")
    assert name_from_text(name) == name


@PATIENT
@given(st.text(max_size=120) | st.sampled_from(sorted(RESERVED_NAMESPACES)) | st.just("API"))
def test_the_nearest_namespace_to_any_text_is_not_reserved(text: str) -> None:
    namespace = namespace_from_text(text)
    assert parse_model_name(f"{namespace}/a") == ModelName(namespace, "a")
    check_new_name(namespace, "namespace")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Coder-7B-Q4_K_M", ("Coder-7B", "Q4_K_M")),
        ("coder.q8_0", ("coder", "Q8_0")),
        ("Coder-UD-Q4_K_XL", ("Coder", "UD-Q4_K_XL")),
        ("gpt-oss-MXFP4_MOE", ("gpt-oss", "MXFP4_MOE")),
        ("Coder-3B.i1-Q4_K_M", ("Coder-3B", "I1-Q4_K_M")),
        ("Coder-Q4_K_M-imat", ("Coder", "Q4_K_M-IMAT")),
        ("Coder-imatrix-IQ2_XS", ("Coder", "IMATRIX-IQ2_XS")),
        ("Coder-Q4_K_M-best", ("Coder", "Q4_K_M-BEST")),
        ("Coder-v1.0-4.5bpw", ("Coder-v1.0", "4.5BPW")),
        ("Coder-7B-2.1GB", ("Coder-7B", "2.1GB")),
        ("Coder-98MB", ("Coder", "98MB")),
        ("Coder-4.5bits", ("Coder-4.5bits", None)),
        ("Coder-3B-best", ("Coder-3B-best", None)),
        ("Coder-3B-i1", ("Coder-3B-i1", None)),
        ("Coder-F16-optimat", ("Coder-F16-optimat", None)),
        ("Coder-7B", ("Coder-7B", None)),
        ("Q4_K_M", ("Q4_K_M", None)),
        ("Coder-Q4_K_M-tuned", ("Coder-Q4_K_M-tuned", None)),
    ],
)
def test_the_quantisation_is_split_from_the_end_of_a_name(name: str, expected: tuple[str, str | None]) -> None:
    assert split_quantisation(name) == expected


@pytest.mark.parametrize("plain", ["Q4_K_M", "IQ2_XXS", "MXFP4_MOE", "NVFP4", "BF16"])
def test_a_plain_quantisation_is_without_the_words_for_how_it_was_made(plain: str) -> None:
    for name in (f"i1-{plain}.imat", f"UD-{plain}_imat", f"imatrix_{plain}-imatrix", f"{plain}_IMATRIX", plain):
        assert plain_quantisation(name) == plain


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("zoo:latest", "library/zoo"),
        ("llama3:8b", "library/llama3-8b"),
        ("jane/tiny:latest", "jane/tiny"),
        ("hf.co/acme/Tiny-GGUF:Q4_K_M", "acme/Tiny-Q4_K_M"),
        ("host.example:5000/jane/tiny:8b@2", "host.example-5000-jane/tiny-8b@2"),
        ("api/x:8b", "by-api/x-8b"),
    ],
)
def test_a_name_as_ollama_prints_it_is_the_name_that_an_ingest_gives(text: str, name: str) -> None:
    if ":" in text:
        with pytest.raises(BadName):
            parse_new_name(text)
    assert str(parse_model_name(text)) == name


@given(st.text("ab.-_:/@ü\0 1", max_size=60) | st.text(max_size=300))
def test_any_text_is_refused_or_is_a_name_that_can_be_parsed_again(text: str) -> None:
    with suppress(BadName):
        name = parse_model_name(text)
        assert parse_model_name(str(name)) == name
