"""The promise: a file that went in comes out identical to the last byte, whatever it is made of."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from organs.registry.digest import digest_of
from organs.registry.errors import NotAssemblable
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import can_dequantize
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, raw_file, raw_tensor
from tests.journeys.odd_files import ARCHITECTURE, ODD_FILES, file_of_every_type, large_vocabulary, write
from tests.small_models import assert_round_trip, ingest_file, row_counts, weight_tensor

ZOO_FILES = sorted((Path(__file__).resolve().parents[2] / "examples" / "zoo").glob("*.gguf"))


def round_trip(registry: LocalRegistry, folder: Path, data: bytes, name: str = "a.gguf") -> None:
    (folder / name).write_bytes(data)
    assert_round_trip(registry, folder / name, folder / "back")


@pytest.mark.parametrize("path", ZOO_FILES, ids=lambda path: path.stem)
def test_every_model_of_the_zoo_comes_back_identical(path: Path, registry: LocalRegistry, tmp_path: Path) -> None:
    report = assert_round_trip(registry, path, tmp_path / "back")
    assert report.digest == digest_of(path.read_bytes())
    assert report.flags == ()


@pytest.mark.parametrize("case", ODD_FILES)
def test_an_odd_file_comes_back_identical(case: str, registry: LocalRegistry, tmp_path: Path) -> None:
    round_trip(registry, tmp_path, ODD_FILES[case]())
    assert {path.name for path in tmp_path.iterdir()} == {"home", "a.gguf", "back"}, "nothing is written elsewhere"


def test_every_type_that_the_gguf_package_can_write_comes_back_identical(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    written = file_of_every_type(str(tmp_path / "types.gguf"))
    assert_round_trip(registry, tmp_path / "types.gguf", tmp_path / "back")
    organs = registry.model("types").organs
    assert {organ.name: (organ.dtype, organ.digest) for organ in organs} == {
        name: (kind.name, digest_of(data)) for name, (kind, data) in written.items()
    }
    for organ in organs:
        dtype = dtype_by_name(organ.dtype)
        assert (dtype.block_elements, dtype.block_bytes) == gguf.GGML_QUANT_SIZES[written[organ.name][0]]
        reasons = {measurement.reason for measurement in registry.organ(organ.digest).measurements}
        unread = f"no kernel reads the values of tensor type {organ.dtype}"
        assert (reasons == {unread}) == (unread in reasons) == (not can_dequantize(dtype))


@pytest.mark.parametrize("shape", [(2048, 128), (512, 256), (1024, 256), (384, 256), (512, 257)])
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_measuring_a_matrix_changes_none_of_its_bytes(
    shape: tuple[int, int], dtype: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    # Of these shapes the spectrum is measured on one run of values, which may be the bytes that are stored.
    path = tmp_path / "router.gguf"
    path.write_bytes(file_bytes([], [weight_tensor("blk.0.ffn_gate_inp.weight", shape, dtype=dtype)]))
    assert_round_trip(registry, path, tmp_path / "back")


def test_tensors_of_unknown_types_are_kept_by_their_offsets(registry: LocalRegistry, tmp_path: Path) -> None:
    begin, middle, end = b"\1" * 416, b"\2" * 2080, b"\3" * 50  # 1,024 values in 13 bits each; 8,192 and a scale; 9
    infos = [
        raw_tensor(b"blk.0.ffn_up_exps.weight", (256, 2, 2), 156, 0),
        raw_tensor(b"blk.0.ffn_down.weight", (128, 64), 36, 416),
        raw_tensor(b"output.weight", (9,), 2**32 - 1, 416 + 2080),
    ]
    round_trip(registry, tmp_path, raw_file([ARCHITECTURE.encode()], infos, begin + middle + end))
    model = registry.model("a")
    assert [(organ.dtype, organ.size_bytes, organ.theta) for organ in model.organs] == [
        ("TYPE_156", 416, None),
        ("TYPE_36", 2080, None),
        ("TYPE_4294967295", 50, None),
    ]
    assert any("unknown here (TYPE_36, TYPE_156 and TYPE_4294967295): kept exactly" in flag for flag in model.flags)
    large = raw_tensor(b"output.weight", (1 << 20, 9), 97)  # more than one chunk of the store
    round_trip(registry, tmp_path, raw_file([ARCHITECTURE.encode()], [large], bytes(9 << 20)), "large.gguf")


def test_a_big_endian_file_is_kept_and_given_only_as_it_was(registry: LocalRegistry, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_token_list([f"token {number}" for number in range(2000)])  # an array that is stored on its own
    writer.add_tensor("token_embd.weight", np.arange(4096, dtype=np.float32).reshape(64, 64))
    write(writer)
    assert_round_trip(registry, tmp_path / "big.gguf", tmp_path / "back")
    model = registry.model("big")
    assert [(organ.dtype, organ.theta) for organ in model.organs] == [("F32_BE", None)]
    assert model.flags[0].startswith("big-endian: kept exactly")
    with pytest.raises(NotAssemblable, match="big-endian"):
        registry.files("big", shard_bytes=1000)


def test_a_vocabulary_of_152_thousand_tokens_comes_back_and_is_stored_once(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    round_trip(registry, tmp_path, large_vocabulary())
    before = row_counts(registry)
    (tmp_path / "b.gguf").write_bytes(large_vocabulary(seed=1))
    report = ingest_file(registry, tmp_path / "b.gguf")
    assert row_counts(registry)["blobs"] - before["blobs"] == report.new_blobs == 1, "one tensor: the rest is shared"
    assert report.known_bytes > 3_000_000


@pytest.mark.long
def test_four_thousand_tensors_come_back(registry: LocalRegistry, tmp_path: Path) -> None:
    tensors = [weight_tensor(f"blk.{index // 10}.ffn_up.{index % 10}.weight", (8, 4)) for index in range(4_000)]
    round_trip(registry, tmp_path, file_bytes([ARCHITECTURE], tensors))
    assert row_counts(registry)["placements"] == 4_000
