"""Tests of the control: which bytes become zero, and which stay."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from organs.registry.errors import BadGguf, BadInput, StoreUnwritable, UnsupportedDType
from organs.registry.gguf.quants import can_dequantize, decode
from organs.registry.gguf.types import DTYPES, DType
from organs.registry.validation.weights import Weights, grafted_organs, write_control, zero_bytes_mean_zero
from tests.gguf_files import file_bytes, tensor, text
from tests.small_models import expert_model
from tests.validation.changed_models import A, feed_forward


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_zero_bytes_are_zeros_in_every_dtype_that_can_be_read(dtype: DType) -> None:
    if can_dequantize(dtype):
        assert not np.any(decode(bytes(3 * dtype.block_bytes), dtype))
    assert zero_bytes_mean_zero(dtype) == can_dequantize(dtype)


def test_the_named_tensors_become_zero_and_all_other_bytes_stay_the_same(tmp_path: Path) -> None:
    names, target = feed_forward(A, [1, 3]), tmp_path / "control.gguf"
    write_control(A, names, target)
    assert target.stat().st_size == A.stat().st_size
    expected = bytearray(A.read_bytes())
    with Weights(A) as weights:
        for name in names:
            spot = weights.spots[name]
            expected[spot.offset : spot.offset + spot.info.size_bytes] = bytes(spot.info.size_bytes)
    assert target.read_bytes() == bytes(expected)
    assert len(names) == 6


def test_only_the_named_experts_of_a_stack_become_zero(tmp_path: Path) -> None:
    for name, changed in (("Mixture", {}), ("Edited", {2: 50, 5: 51})):
        (tmp_path / name).write_bytes(expert_model(changed=changed))
    names = grafted_organs(tmp_path / "Edited", tmp_path / "Mixture")
    stacks = [f"blk.{block}.ffn_{part}_exps.weight" for block in (0, 1) for part in ("gate", "up")]
    assert sorted(names) == sorted(f"{stack}[{number}]" for stack in stacks for number in (2, 5))
    write_control(tmp_path / "Edited", names, tmp_path / "control.gguf")
    with Weights(tmp_path / "Edited") as edited, Weights(tmp_path / "control.gguf") as control:
        for name, spot in control.spots.items():
            before = edited.spots[name]
            numbers = set(range(spot.expert_count))
            zeroed = {number for number in numbers if not any(map(any, spot.expert(number).chunks()))}
            assert zeroed == ({2, 5} if name in stacks else set())
            assert not any(spot.expert(number).differs_from(before.expert(number)) for number in numbers - zeroed)
            assert name in stacks or not spot.differs_from(before)
    with pytest.raises(BadInput, match="no tensor 'blk"):
        write_control(tmp_path / "Edited", [f"{stacks[0]}[8]"], tmp_path / "none.gguf")


def test_a_copy_without_kernel_support_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = feed_forward(A)
    write_control(A, names, tmp_path / "fast.gguf")
    monkeypatch.delattr(os, "copy_file_range")
    write_control(A, names, tmp_path / "slow.gguf")
    assert (tmp_path / "fast.gguf").read_bytes() == (tmp_path / "slow.gguf").read_bytes()


def test_an_unknown_name_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no tensor 'nonsense'"):
        write_control(A, ["nonsense"], tmp_path / "control.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_dtype_without_a_kernel_is_refused(tmp_path: Path) -> None:
    unread = next(dtype for dtype in DTYPES.values() if not can_dequantize(dtype))
    path = tmp_path / "model.gguf"
    path.write_bytes(
        file_bytes([text("general.architecture", "llama")], [tensor("a", (unread.block_elements,), unread)])
    )
    with pytest.raises(UnsupportedDType, match=unread.name):
        write_control(path, ["a"], tmp_path / "control.gguf")


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "control.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(StoreUnwritable):
        write_control(A, [], target)
    assert target.read_bytes() == b"mine"


def test_input_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"nothing")
    with pytest.raises(BadGguf):
        write_control(tmp_path / "no.gguf", [], tmp_path / "control.gguf")
