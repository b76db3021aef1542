"""Tags of sizes: short words that clients accept, and the request and the command behind each."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.sizes import QuantizationRequest
from organs.registry.errors import BadInput
from organs.registry.names import check_new_name, split_quantisation
from organs.registry.quantizing.tags import command_for, name_of_size, request_for, tag_of

TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
"""What Ollama accepts as a tag."""


def request(**wanted: object) -> QuantizationRequest:
    return QuantizationRequest(model="me/coder", **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "tag"),
    [
        (request(type="q4_k_m"), "Q4_K_M"),
        (request(like="Q4_K_M"), "Q4_K_M-best"),
        (request(bits=4.5), "4.5bpw"),
        (request(bits=4.0), "4bpw"),
        (request(bits=5.5671), "5.568bpw"),
        (request(size_bytes=4_000_000_000), "4GB"),
        (request(size_bytes=2_149_999_999), "2.15GB"),
        (request(size_bytes=98_400_000), "98.4MB"),
        (request(size_bytes=999), "0.001MB"),
    ],
)
def test_a_size_has_a_short_tag(wanted: QuantizationRequest, tag: str) -> None:
    assert tag_of(wanted) == tag


def test_the_size_of_a_model_is_its_bytes() -> None:
    assert tag_of(request(like="me/other"), like_bytes=1_500_000_000) == "1.5GB"


@given(st.integers(1, 9 * 10**12) | st.floats(0.01, 32, allow_nan=False))
def test_every_tag_is_one_that_clients_and_names_accept(wanted: float) -> None:
    wish = request(size_bytes=wanted) if isinstance(wanted, int) else request(bits=wanted)
    tag = tag_of(wish)
    assert TAG.fullmatch(tag)
    check_new_name(f"coder-{tag}")
    assert split_quantisation(f"coder-{tag}") == ("coder", tag.upper())
    assert command_for("me/coder", tag)


@pytest.mark.parametrize(
    ("tag", "options"),
    [
        ("4.5bpw", "--bpw 4.5"),
        ("4.5BPW", "--bpw 4.5"),
        ("2.1GB", "--size 2.1GB"),
        ("98MB", "--size 98MB"),
        ("q4_k_m", "--type Q4_K_M"),
        ("Q4_K_M-best", "--like Q4_K_M"),
        ("latest", None),
        ("0bpw", None),
        ("v2", None),
        ("x; rm -rf", None),
        ("", None),
    ],
)
def test_the_command_makes_the_size_of_a_tag(tag: str, options: str | None) -> None:
    assert command_for("me/coder", tag) == (options and f"organ quantize me/coder {options}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4 GB", request(size_bytes=4 * 10**9)),
        ("98mb", request(size_bytes=98 * 10**6)),
        ("4.5 bits", request(bits=4.5)),
        ("1 bit", request(bits=1.0)),
        (" 4.5 bpw ", request(bits=4.5)),
        ("q4_k_m", request(like="Q4_K_M")),
    ],
)
def test_a_person_types_a_size(text: str, expected: QuantizationRequest) -> None:
    assert request_for("me/coder", text) == expected


@pytest.mark.parametrize(
    "text", ["", "4", "0 GB", "-4 GB", "4 TB", "nan bits", "bits", "Q4_K_M-best", "../x", "x" * 5000]
)
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(BadInput, match="write for example"):
        request_for("me/coder", text)


def test_a_size_is_a_quantisation_of_its_source_only_in_the_namespace_of_its_owner() -> None:
    source = ModelRow(namespace="me", name="coder-F16", version=1)
    assert str(name_of_size(source, "4.5bpw", "me")) == "me/coder-4.5bpw"
    assert str(name_of_size(source, "4.5bpw", "local")) == "me/coder-4.5bpw"
    assert str(name_of_size(source, "4.5bpw", "you")) == "you/coder-4.5bpw"
    full = ModelRow(namespace="me", name="coder-FP16", version=1)
    assert str(name_of_size(full, "4.5bpw", "me")) == "me/coder-4.5bpw"
    rounded = ModelRow(namespace="me", name="coder.Q4_1", version=1)
    assert str(name_of_size(rounded, "4.5bpw", "me")) == "me/coder.Q4_1-4.5bpw", "it is no size of coder-F16"
    long = ModelRow(namespace="me", name="x" * 96, version=1)
    assert len(name_of_size(long, "4.5bpw", "me").name) == 96
