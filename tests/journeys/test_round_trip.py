"""The promise: a file that went in comes out identical to the last byte, whatever it is made of."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from sqlalchemy import select

from organs.registry.catalog.tables import Blob, MeasurementRow, ModelMetadata, OrganRow
from organs.registry.digest import digest_of
from organs.registry.errors import NotAssemblable
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_id, padded
from organs.registry.gguf.quants import can_dequantize
from organs.registry.gguf.types import ALIGNMENT_MAX, DTYPES
from organs.registry.local import LocalRegistry
from tests.gguf_files import (
    array,
    every_value_type,
    file_bytes,
    raw_field,
    raw_file,
    raw_tensor,
    raw_text,
    tensor,
    text,
    unsigned,
    vocabulary,
)
from tests.small_models import assert_round_trip, ingest_file, row_counts, small_model, token_array, weight_tensor

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
ZOO_FILES = sorted(ZOO.glob("*.gguf"))
ARCHITECTURE = text("general.architecture", "llama")


def round_trip(registry: LocalRegistry, folder: Path, data: bytes, name: str = "a.gguf") -> None:
    (folder / name).write_bytes(data)
    assert_round_trip(registry, folder / name, folder / "back")


def test_the_zoo_is_available() -> None:
    assert ZOO_FILES, "examples/zoo holds no GGUF file: its models come with the source"


@pytest.mark.parametrize("path", ZOO_FILES, ids=lambda path: path.stem)
def test_every_model_of_the_zoo_comes_back_identical(path: Path, registry: LocalRegistry, tmp_path: Path) -> None:
    report = assert_round_trip(registry, path, tmp_path / "back")
    assert report.digest == digest_of(path.read_bytes())
    assert report.flags == ()


def block_bytes(dtype_id: int, elements: int, seed: int) -> bytes:
    """Bytes of a tensor type: numbers for floats, anything at all for the others, as no block is invalid."""
    dtype = dtype_by_id(dtype_id)
    random_numbers = np.random.default_rng([seed, dtype_id])
    values = random_numbers.standard_normal(elements)
    floats = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    if dtype.name in floats:
        return values.astype(floats[dtype.name]).tobytes()
    if dtype.name == "BF16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return random_numbers.bytes(dtype.size_bytes(elements))


def test_tensors_of_unknown_types_are_kept_by_their_offsets(registry: LocalRegistry, tmp_path: Path) -> None:
    begin, middle, end = b"\1" * 416, b"\2" * 2080, b"\3" * 50  # 1,024 values in 13 bits each; 8,192 and a scale; 9
    infos = [
        raw_tensor(b"blk.0.ffn_up_exps.weight", (256, 2, 2), 156, 0),
        raw_tensor(b"blk.0.ffn_down.weight", (128, 64), 36, 416),
        raw_tensor(b"output.weight", (9,), 2**32 - 1, 416 + 2080),
    ]
    round_trip(registry, tmp_path, raw_file([ARCHITECTURE.encode()], infos, begin + middle + end))
    model = registry.model("a")
    assert [(organ.dtype, organ.size_bytes) for organ in model.organs] == [
        ("TYPE_156", 416),
        ("TYPE_36", 2080),
        ("TYPE_4294967295", 50),
    ]
    assert [organ.theta for organ in model.organs] == [None] * 3
    large = raw_tensor(b"output.weight", (1 << 20, 9), 97)  # more than one chunk of the store
    round_trip(registry, tmp_path, raw_file([ARCHITECTURE.encode()], [large], bytes(9 << 20)), "large.gguf")
    assert any("unknown here (TYPE_36, TYPE_156 and TYPE_4294967295): kept exactly" in flag for flag in model.flags)


def test_a_big_endian_file_is_kept_and_given_only_as_it_was(registry: LocalRegistry, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_token_list([f"token {number}" for number in range(2000)])  # an array that is stored on its own
    writer.add_tensor("token_embd.weight", np.arange(4096, dtype=np.float32).reshape(64, 64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_round_trip(registry, tmp_path / "big.gguf", tmp_path / "back")
    model = registry.model("big")
    assert [(organ.dtype, organ.theta) for organ in model.organs] == [("F32_BE", None)]
    assert model.flags[0].startswith("big-endian: kept exactly")
    with pytest.raises(NotAssemblable, match="big-endian"):
        registry.files("big", shard_bytes=1000)


@pytest.mark.parametrize("kind", list(gguf.GGML_QUANT_SIZES), ids=lambda kind: kind.name)
def test_a_file_of_every_type_that_the_gguf_package_can_write_comes_back_identical(
    kind: gguf.GGMLQuantizationType, registry: LocalRegistry, tmp_path: Path
) -> None:
    block_elements, block_size = gguf.GGML_QUANT_SIZES[kind]
    dtype = DTYPES[int(kind)]
    assert (dtype.name, dtype.block_elements, dtype.block_bytes) == (kind.name, block_elements, block_size)
    path = tmp_path / f"{kind.name}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    written = {}
    for block, (row, rows) in enumerate([(block_elements, 1), (4 * block_elements, 96), (16 * block_elements, 40)]):
        data = block_bytes(int(kind), row * rows, block)
        raw = np.frombuffer(data, np.uint8).reshape(rows, -1)
        name = f"blk.{block}.ffn_up.weight"
        writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=kind)
        written[name] = digest_of(data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_round_trip(registry, path, tmp_path / "back")
    with registry.catalog.reading() as session:
        digests = set(session.scalars(select(Blob.digest).join(OrganRow, OrganRow.blob_id == Blob.id)))
        assert set(session.scalars(select(OrganRow.dtype))) == {kind.name}
        reasons = set(session.scalars(select(MeasurementRow.reason)))
    assert digests == set(written.values())
    unread = f"no kernel reads the values of tensor type {kind.name}"
    assert (reasons == {unread}) == (unread in reasons) == (not can_dequantize(dtype))


def test_one_file_of_all_types_together_comes_back_identical(registry: LocalRegistry, tmp_path: Path) -> None:
    tensors = []
    for dtype in DTYPES.values():
        spec = TensorSpec(f"blk.{dtype.id}.ffn_down.weight", (2 * dtype.block_elements, 3), dtype)
        tensors.append((spec, block_bytes(dtype.id, spec.elements, 7)))
    round_trip(registry, tmp_path, file_bytes([ARCHITECTURE], tensors))
    assert row_counts(registry)["placements"] == len(DTYPES) >= 30


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16, 64, 128, 4096, ALIGNMENT_MAX])
def test_every_alignment_comes_back(alignment: int, registry: LocalRegistry, tmp_path: Path) -> None:
    tensors = [tensor("a", (5,)), tensor("b", (31,)), tensor("c", (1,))]
    round_trip(registry, tmp_path, file_bytes([ARCHITECTURE], tensors, alignment))


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_a_last_tensor_without_its_padding_comes_back(alignment: int, registry: LocalRegistry, tmp_path: Path) -> None:
    whole = file_bytes([ARCHITECTURE], [tensor("a", (5,)), tensor("b", (3,))], alignment)
    round_trip(registry, tmp_path, whole[: len(whole) - padded(12, alignment) + 12])


@pytest.mark.parametrize("kept", [1, 7, 19])
def test_a_last_tensor_with_some_of_its_padding_comes_back(kept: int, registry: LocalRegistry, tmp_path: Path) -> None:
    whole = file_bytes([ARCHITECTURE], [tensor("a", (5,)), tensor("b", (3,))])
    round_trip(registry, tmp_path, whole[: len(whole) - 20 + kept])


def test_padding_that_is_not_zero_comes_back_wherever_it_is(registry: LocalRegistry, tmp_path: Path) -> None:
    tensors = [tensor("a", (5,)), tensor("b", (8,)), tensor("c", (3,))]
    data = bytearray(file_bytes([ARCHITECTURE], tensors, 64))
    begin = len(data) - 3 * 64
    for offset in (begin - 1, begin + 20, begin + 63, begin + 64 + 32, begin + 3 * 64 - 1):
        assert data[offset] == 0
        data[offset] = 0xA5
    round_trip(registry, tmp_path, bytes(data))


def test_a_mebibyte_of_random_padding_comes_back(registry: LocalRegistry, tmp_path: Path) -> None:
    data = bytearray(file_bytes([ARCHITECTURE], [tensor("a", (5,))], ALIGNMENT_MAX))
    data[-(ALIGNMENT_MAX - 20) :] = random.Random(0).randbytes(ALIGNMENT_MAX - 20)
    round_trip(registry, tmp_path, bytes(data))


@pytest.mark.parametrize("alignment", [8, 32, 4096])
@pytest.mark.parametrize("tail", ["whole", "none", "half", "noise"])
def test_a_file_without_tensors_comes_back(tail: str, alignment: int, registry: LocalRegistry, tmp_path: Path) -> None:
    entries = [ARCHITECTURE, unsigned("general.alignment", alignment), text("odd", "length")]
    whole = raw_file([entry.encode() for entry in entries], alignment=alignment)
    end = len(raw_file([entry.encode() for entry in entries], alignment=1))
    assert len(whole) > end
    middle = (end + len(whole)) // 2
    data = {"whole": whole, "none": whole[:end], "half": whole[:middle], "noise": whole[:-1] + b"\xff"}[tail]
    round_trip(registry, tmp_path, data)


def test_a_header_of_24_bytes_comes_back(registry: LocalRegistry, tmp_path: Path) -> None:
    round_trip(registry, tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 0))


def test_a_vocabulary_of_152_thousand_tokens_and_its_merges_come_back(registry: LocalRegistry, tmp_path: Path) -> None:
    tokens = vocabulary(152_000)
    assert any(not _is_utf_8(token) for token in tokens)
    merges = [b"%b %b" % (tokens[index], tokens[-index]) for index in range(1, 151_001)]
    entries = [
        ARCHITECTURE,
        token_array(tokens),
        array("tokenizer.ggml.token_type", ValueType.INT32, [1 + index % 5 for index in range(152_000)]),
        token_array(merges, "merges"),
        text("tokenizer.chat_template", "{{ messages }}" * 10_000),
    ]
    data = file_bytes(entries, [weight_tensor("token_embd.weight", (64, 96))])
    round_trip(registry, tmp_path, data)
    before = row_counts(registry)
    (tmp_path / "b.gguf").write_bytes(file_bytes(entries, [weight_tensor("token_embd.weight", (64, 96), seed=1)]))
    report = ingest_file(registry, tmp_path / "b.gguf")
    assert row_counts(registry)["blobs"] - before["blobs"] == report.new_blobs == 1, "one tensor: the rest is shared"
    assert report.known_bytes > 3_000_000


def _is_utf_8(token: bytes) -> bool:
    try:
        token.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def test_keys_with_hyphens_and_every_other_sign_come_back(registry: LocalRegistry, tmp_path: Path) -> None:
    keys = ["command-r.context_length", "UPPER.case", "spaces in it", "~!@#$%^&*()", "x" * 65_535]
    entries = [text("general.architecture", "command-r"), *(unsigned(key, 1) for key in keys)]
    round_trip(registry, tmp_path, file_bytes(entries, [tensor("a")]))
    with registry.catalog.reading() as session:
        shown = session.scalars(select(ModelMetadata.key).order_by(ModelMetadata.position)).all()
    assert list(shown[1:-1]) == keys[:-1]


def test_tensor_names_that_would_be_trouble_as_paths_come_back(registry: LocalRegistry, tmp_path: Path) -> None:
    names = ["../../x", "/etc/passwd", "C:\\x", "CON", ".", "..", "a", "A", " ", "%s", "'; DROP TABLE organs; --"]
    round_trip(registry, tmp_path, file_bytes([ARCHITECTURE], [tensor(name) for name in names]))
    outside = {path.name for path in tmp_path.iterdir()}
    assert outside == {"home", "a.gguf", "back"}


def test_every_value_type_and_numbers_that_are_not_finite_come_back(registry: LocalRegistry, tmp_path: Path) -> None:
    payload_nan = raw_field(b"odd.nan", ValueType.FLOAT32, b"\x01\x00\xa0\x7f")
    truth = raw_field(b"odd.bool", ValueType.BOOL, b"\x17")
    entries = [entry.encode() for entry in every_value_type()]
    infinite = KeyValue("odd.inf", ValueType.FLOAT64, float("-inf")).encode()
    text_with_nul = raw_field(b"odd.text", ValueType.STRING, raw_text(b"a\0\xff\0"))
    fields = [*entries, payload_nan, truth, infinite, text_with_nul]
    round_trip(registry, tmp_path, raw_file(fields, [raw_tensor(b"a", (8,))], bytes(range(32))))


def test_a_file_of_version_2_comes_back_as_version_2(registry: LocalRegistry, tmp_path: Path) -> None:
    data = small_model()
    round_trip(registry, tmp_path, data[:4] + struct.pack("<I", 2) + data[8:])


@pytest.mark.long
def test_four_thousand_tensors_come_back(registry: LocalRegistry, tmp_path: Path) -> None:
    tensors = [weight_tensor(f"blk.{index // 10}.ffn_up.{index % 10}.weight", (8, 4)) for index in range(4_000)]
    round_trip(registry, tmp_path, file_bytes([ARCHITECTURE], tensors))
    assert row_counts(registry)["placements"] == 4_000


def test_a_tensor_of_several_chunks_comes_back(registry: LocalRegistry, tmp_path: Path) -> None:
    values = (0.02 * np.random.default_rng(0).standard_normal(5_000_000)).astype(np.float16)
    large = TensorSpec("output.weight", (1_000, 5_000), dtype_by_id(1))
    tensors = [tensor("blk.0.attn_norm.weight", (7,)), (large, values.tobytes()), tensor("output_norm.weight", (3,))]
    round_trip(registry, tmp_path, file_bytes([ARCHITECTURE], tensors))


def test_tensors_of_nothing_but_zeros_come_back(registry: LocalRegistry, tmp_path: Path) -> None:
    specs = [TensorSpec(f"blk.{dtype.id}.a", (2 * dtype.block_elements,), dtype) for dtype in DTYPES.values()]
    round_trip(registry, tmp_path, file_bytes([ARCHITECTURE], [(spec, bytes(spec.size_bytes)) for spec in specs]))


def test_a_model_of_known_organs_comes_back(registry: LocalRegistry, tmp_path: Path) -> None:
    round_trip(registry, tmp_path, small_model("A"))
    before = row_counts(registry)
    reordered = small_model("A", more=[unsigned("llama.context_length", 512)])
    round_trip(registry, tmp_path, reordered, "b.gguf")
    assert row_counts(registry)["organs"] == before["organs"]
