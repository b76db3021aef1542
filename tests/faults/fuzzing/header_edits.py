"""Damage to the parts of a file: like that of a clever author rather than that of a broken disk.

Many of these files are valid, or have a single fault, so that the later checks are reached.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from organs.registry.gguf import ValueType
from organs.registry.gguf.types import DTYPES, SCALAR_SIZES
from tests.faults.fuzzing import edits
from tests.faults.fuzzing.header_parts import Assembled, Entry, Info, Parts, with_alignment
from tests.gguf_files import raw_array, raw_text

Edit = Callable[[Parts, Random], None]

NAMES = (
    *(b"a", b"A", b" ", b".", b"..", b"../../x", b"/etc/passwd", b"C:\\x", b"CON", b"blk.0.attn_q.weight", b"x" * 63),
    *(b"x" * 64, b"", b"a\0b", b"a\x1b[2J", b"gr\xc3\xbc\xc3\x9fe", b"blk.999999999.ffn_up.weight", b"~", b"%s%n{}"),
    *(b"blk.9999999999.ffn_up.weight", b"blk.-1.attn_k", b"blk.blk.blk.0.blk.1.x", b"v.blk.3.ln1.weight", b"<script>"),
    *(b"blk.0.attn_q.weight.lora_a", b".lora_b", b"enc.blk.0.attn_norm.weight", b"'; DROP TABLE organs; --"),
)
KEYS = (
    *(
        b"general.architecture",
        b"general.alignment",
        b"general.name",
        b"split.no",
        b"split.count",
        b"split.tensors.count",
    ),
    *(b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type", b"tokenizer.ggml.scores", b"tokenizer.ggml.merges"),
    *(b"general.type", b"general.tags", b"general.base_model.count", b"general.base_model.0.name"),
    *(b"general.quantization_version", b"llama.block_count", b"k" * 65_535, b"k" * 65_536),
)
TEXTS = (
    b"",
    b"llama",
    b"\xff\xfe",
    b"nul\0",
    b"\x1b[31m",
    "世界".encode(),
    b"adapter",
    b"{{ x }}" * 300,
    b"t" * 65_537,
    b"../..",
)
TOKENS = (b"<0x0A>", b"<0x-1>", b"<0xG0>", b"<0x0A>\n", b"", b"\xff", b"word")
LARGE_LENGTHS = (2**21, 2**31, 2**32 - 1, 2**40, 2**61, 2**62, 2**63 - 256, 2**63, 2**64 - 256, 4_194_305)
ALIGNMENTS = (1, 2, 4, 8, 16, 64, 128, 512, 4096)
BORROWED_SHARE = 0.09
BAD_ALIGNMENTS = (0, 3, 13, 48, 2**20 + 1, 2**21, 2**31, 2**32 - 1)


def edit_parts(parts: Parts, random: Random, seeds: Sequence[Parts]) -> None:
    """Make one edit, at any applicable part, or take a part of another seed."""
    if random.random() < BORROWED_SHARE:
        _borrow(parts, random, seeds)
    else:
        random.choice(_EDITS)(parts, random)


def edit_bytes(file: Assembled, random: Random, other: bytes) -> None:
    """Make one edit of the bytes, mostly at a number of the header. It may move the bytes after it."""
    data = file.data
    if len(data) < 24:
        edits.lengthen(data, random)
    end = min(file.header_end, len(data))
    chance = random.random()
    marks = file.marks
    if chance < 0.55:
        edits.set_number(data, random.choice(marks), random)
    elif chance < 0.62:
        edits.exchange(data, marks, random)
    elif chance < 0.74:
        edits.flip(data, end, random)
    elif chance < 0.87:
        edits.overwrite(data, end, random, other)
    elif chance < 0.91:
        edits.cross(data, end, random, other)
    elif chance < 0.96:
        edits.cut(data, random)
    else:
        edits.lengthen(data, random)


def _rename_tensor(parts: Parts, random: Random) -> None:
    if parts.infos:
        place = random.randrange(len(parts.infos))
        parts.infos[place] = replace(parts.infos[place], name=random.choice(NAMES))


def _rename_entry(parts: Parts, random: Random) -> None:
    if parts.entries:
        place = random.randrange(len(parts.entries))
        key = random.choice(KEYS if random.random() < 0.3 else KEYS[:-2] + NAMES)
        parts.entries[place] = replace(parts.entries[place], key=key)


def _put_scalar(parts: Parts, random: Random) -> None:
    kind = random.choice(tuple(SCALAR_SIZES))
    number = edits.interesting_number(random, 1, SCALAR_SIZES[kind])
    _put(parts, random, Entry(b"", kind, number.to_bytes(SCALAR_SIZES[kind], "little")))


def _put_text(parts: Parts, random: Random) -> None:
    _put(parts, random, Entry(b"", ValueType.STRING, raw_text(random.choice(TEXTS))))


def _put_array(parts: Parts, random: Random) -> None:
    count = random.choice((0, 1, 2, 6, 20, 300))
    if random.random() < 0.5:
        value = raw_array(ValueType.STRING, b"".join(raw_text(random.choice(TOKENS)) for _ in range(count)), count)
    else:
        kind = random.choice(tuple(SCALAR_SIZES))
        value = raw_array(kind, random.randbytes(count * SCALAR_SIZES[kind]), count)
    _put(parts, random, Entry(b"", ValueType.ARRAY, value))


def _put_tokens(parts: Parts, random: Random) -> None:
    count = random.randrange(1, 6)
    words = b"".join(raw_text(random.choice(TOKENS)) for _ in range(count))
    kinds = struct.pack(f"<{count}i", *(random.choice((1, 6, 6, -1)) for _ in range(count)))
    for key, kind, payload in (
        (b"tokenizer.ggml.tokens", ValueType.STRING, words),
        (b"tokenizer.ggml.token_type", random.choice((ValueType.INT32, ValueType.UINT32)), kinds),
    ):
        parts.entries = [entry for entry in parts.entries if entry.key != key]
        parts.entries.append(Entry(key, ValueType.ARRAY, raw_array(kind, payload, count)))


def _put(parts: Parts, random: Random, entry: Entry) -> None:
    """Put a value in place of another one, or under a new key."""
    if parts.entries and random.random() < 0.7:
        place = random.randrange(len(parts.entries))
        parts.entries[place] = replace(entry, key=parts.entries[place].key)
    else:
        parts.entries.append(replace(entry, key=random.choice(KEYS[:-2])))


def _borrow(parts: Parts, random: Random, seeds: Sequence[Parts]) -> None:
    other = random.choice(seeds)
    if random.random() < 0.5 and other.entries:
        parts.entries.insert(random.randrange(len(parts.entries) + 1), random.choice(other.entries))
    elif other.infos:
        parts.infos.insert(random.randrange(len(parts.infos) + 1), random.choice(other.infos))


def _drop_or_repeat(parts: Parts, random: Random) -> None:
    pieces: list[Entry] | list[Info] = random.choice((parts.entries, parts.infos))
    if not pieces:
        return
    place = random.randrange(len(pieces))
    match random.randrange(5):
        case 0:
            pieces.append(pieces[place])  # type: ignore[arg-type]
        case 1 | 2:
            pieces.reverse()
        case _:
            del pieces[place]


def _reshape(parts: Parts, random: Random) -> None:
    if parts.infos:
        place = random.randrange(len(parts.infos))
        info = parts.infos[place]
        block = DTYPES[info.dtype_id].block_elements if info.dtype_id in DTYPES else 32
        shape = [block * random.choice((1, 2)), *random.choice(((), (1,), (2, 2), (7, 1, 1), (3, 1)))]
        if random.random() < 0.1:
            shape[0] += random.choice((1, 2, 16))
        parts.infos[place] = replace(info, shape=tuple(shape))


def _claim_much(parts: Parts, random: Random) -> None:
    """Claim lengths larger than any file, in tensors with correct offsets."""
    if random.random() < 0.1:
        parts.infos = [replace(info, shape=(2**60,)) for info in parts.infos]
        return
    for place in random.sample(range(len(parts.infos)), min(len(parts.infos), random.choice((1, 2)))):
        lengths = [random.choice((*LARGE_LENGTHS, *edits.INTERESTING)) for _ in range(random.randrange(1, 6))]
        if random.random() < 0.7:
            lengths[1:] = [random.choice((1, 1, 2, 255)) for _ in lengths[1:]]
        parts.infos[place] = replace(parts.infos[place], shape=tuple(lengths))


def _retype(parts: Parts, random: Random) -> None:
    if parts.infos:
        place = random.randrange(len(parts.infos))
        info = parts.infos[place]
        kind = random.choice(tuple(DTYPES.values()))
        number = kind.id if random.random() < 0.85 else random.choice((4, 5, 31, 36, 42, 99, 2**31, 2**32 - 1))
        shape = (kind.block_elements, *info.shape[1:]) if random.random() < 0.9 else info.shape
        parts.infos[place] = replace(info, dtype_id=number, shape=shape)


def _misplace(parts: Parts, random: Random) -> None:
    if parts.infos:
        place = random.randrange(len(parts.infos))
        offset = random.choice((0, 1, 32, 64, 96, 4096, 2**63, 2**64 - 32, 2**64 - 1))
        parts.infos[place] = replace(parts.infos[place], offset=offset)


def _realign(parts: Parts, random: Random) -> None:
    chance = random.random()
    if chance < 0.7:
        with_alignment(parts, random.choice(ALIGNMENTS))
    elif chance < 0.72:
        with_alignment(parts, 1 << 20)
    elif chance < 0.9:
        kept = parts.alignment
        with_alignment(parts, random.choice(BAD_ALIGNMENTS))
        parts.alignment = kept
    else:
        kind = random.choice((ValueType.INT32, ValueType.UINT64, ValueType.FLOAT32, ValueType.UINT16))
        size = SCALAR_SIZES[kind]
        parts.entries.append(Entry(b"general.alignment", kind, (32).to_bytes(size, "little")))


def _pad_oddly(parts: Parts, random: Random) -> None:
    parts.padding = random.choice((0, 1, 32, 255))
    parts.tail = random.choice((None, 0, 0, 1, 3, 31))


def _other_version(parts: Parts, random: Random) -> None:
    parts.version = random.choice((2, 2, 2, 2, 2, 3, 0, 1, 4, 99, 0x02000000, 0x03000000, 2**32 - 1))


def _split(parts: Parts, random: Random) -> None:
    for key in (b"split.no", b"split.count", b"split.tensors.count"):
        kind = random.choice((ValueType.UINT16, ValueType.INT32, ValueType.UINT64))
        number = random.choice((0, 1, 1, 2, 3, 3, 3, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
        value = (number % (1 << 8 * SCALAR_SIZES[kind])).to_bytes(SCALAR_SIZES[kind], "little")
        if random.random() < 0.6:
            parts.entries = [entry for entry in parts.entries if entry.key != key]
            parts.entries.append(Entry(key, kind, value))


_EDITS: tuple[Edit, ...] = (
    *(_rename_tensor, _rename_entry, _put_scalar, _put_scalar, _put_text, _put_array, _put_tokens),
    *(_drop_or_repeat, _reshape, _reshape, _claim_much, _retype, _retype, _misplace, _realign, _realign, _pad_oddly),
    *(_pad_oddly, _other_version, _split),
)
