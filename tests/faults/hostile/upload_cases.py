"""Hostile submissions: files that are not models, wrong declarations, manifests and uploads with false statements.

A case has a kind and sends all of its data; it returns the outcome of its submission, or raises Refused if the server
refused it before.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from organs.registry.digest import digest_of
from organs.registry.errors import BadGguf
from organs.registry.gguf import KeyValue, MemorySource, ValueType, read_header
from tests.faults.failing import flip_bit
from tests.faults.fuzzing.header_check import HeaderTarget
from tests.faults.hostile.headers import BAD_HEADERS
from tests.faults.hostile.upload_client import Attack, Sender, Spans, Values, of_file, of_pieces
from tests.faults.hostile.upload_texts import OTHER, said
from tests.gguf_files import file_bytes, raw_file, raw_tensor, tensor, unsigned
from tests.small_models import small_model

GOOD = small_model("Good", seed=1)
"""A file that is registered before."""
SOUND_SHARE = 0.1
"""The number of accepted files among the mutants."""
MUTANT_MAX_BYTES = 1 << 20
TRIED = 20
"""Mutants made for each one that is sent, so that there are enough of both kinds."""
SEA_ELEMENTS = 50_000_000
"""The size of a tensor of zeros that is not sent."""
NOBODYS = "0" * 64

Files = Sequence[tuple[str, bytes]]


def attacks(number: int, seed: int) -> list[Attack]:
    """Return this number of cases: all that are written here, or a part of them, and mutants for the rest."""
    random = Random(seed)
    written = [*_headers(), *_no_models(random), *_promises(), *_sets(), *said(random)]
    if number < len(written):
        return random.sample(written, number)
    all_cases = [*written, *_mutants(number - len(written), random)]
    random.shuffle(all_cases)
    return all_cases


def send_files(files: Files, sender: Sender, name: str, *, cuts: int = 0, publish: bool = True) -> Values:
    """Send files complete, or cut into pieces, and submit them."""
    manifest_files = []
    for file, data in files:
        if cuts and len(data) > 1:
            spans = _spans(data, cuts)
            sender.pieces([data[offset : offset + size] for offset, size in spans])
            manifest_files.append(of_pieces(file, data, spans))
        else:
            manifest_files.append(of_file(file, sender.file(data)))
    return sender.submit(f"{sender.name}/{name}", {"files": manifest_files, "publish": publish})


def _one(kind: str, what: str, data: bytes, number: int) -> Attack:
    """Return a case of one file: every other one is sent in pieces."""
    return Attack(kind, what, partial(send_files, [("model.gguf", data)], cuts=number % 2 * 3))


def _spans(data: bytes, cuts: int) -> Spans:
    random = Random(len(data))
    places = sorted({0, len(data), *(random.randrange(1, len(data)) for _ in range(cuts))})
    return [(begin, end - begin) for begin, end in pairwise(places)]


def _headers() -> Iterator[Attack]:
    for number, (what, bad) in enumerate(BAD_HEADERS.items()):
        yield _one("headers written by hand", what, bad.files[0], number)


def _no_models(random: Random) -> Iterator[Attack]:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps({"w": [1.0] * 100}))
    head = read_header(MemorySource(OTHER)).data_offset
    files = {
        "an archive": stream.getvalue(),
        "a pickle": pickle.dumps({"weights": [1.0] * 100}),
        "a program": b"\x7fELF" + random.randbytes(500),
        "a page": b"<html><script>alert(1)</script>",
        "safetensors": (40).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1]}}'.ljust(40) + bytes(4),
        "zeros": bytes(10_000),
        "noise": random.randbytes(10_000),
        "a magic and noise": b"GGUF\3\0\0\0" + random.randbytes(10_000),
        "a byte": b"G",
        "more behind its end": OTHER + b"more",
        "an archive behind its end": OTHER + stream.getvalue(),
        "twice itself": OTHER * 2,
        **{f"cut at {size:,}": OTHER[:size] for size in (23, head // 2, head, head + 1, len(OTHER) - 40)},
        **{f"bit {bit} of the counts": flip_bit(OTHER, bit) for bit in (8 * 8 + 5, 8 * 14, 16 * 8 + 3, 22 * 8)},
    }
    for number, (what, data) in enumerate(files.items()):
        yield _one("no models", what, data, number)


def _promises() -> Iterator[Attack]:
    """Yield manifests for uploaded bytes with a false statement."""
    spans = _spans(OTHER, 4)
    manifest_file = of_pieces("model.gguf", OTHER, spans)
    pieces = manifest_file["pieces"]
    sea = raw_file(tensors=[raw_tensor(b"sea", (SEA_ELEMENTS,))])
    wrong: dict[str, Values] = {
        "another digest": {"sha256": NOBODYS},
        "larger than its pieces": {"size_bytes": len(OTHER) + 32},
        "larger than any disk": {"size_bytes": 2**62, "pieces": pieces},
        "a piece left out": {"pieces": pieces[1:]},
        "the last piece left out": {"pieces": pieces[:-1]},
        "pieces exchanged": {"pieces": _renamed(pieces, [1, 0, *range(2, len(pieces))])},
        "one piece everywhere": {"pieces": _renamed(pieces, [0] * len(pieces))},
        "no pieces": {"pieces": []},
        "a piece of nobody": {"pieces": [[0, 10, NOBODYS], *pieces[1:]]},
        "a piece of another size": {"pieces": [[0, 1, pieces[0][2]], *pieces[1:]]},
        "digits after its digest": {"pieces": [[0, pieces[0][1], pieces[0][2] + "00"]]},
    }
    for what, edit in wrong.items():
        yield Attack(
            "promises not kept", what, partial(_promise, manifest_file | edit, [OTHER[o : o + s] for o, s in spans])
        )
    ocean = of_pieces("sea.gguf", sea, [(0, len(sea))])
    ocean |= {"size_bytes": len(sea) + 4 * SEA_ELEMENTS, "sha256": digest_of(sea)}
    yield Attack("promises not kept", "a sea of zeros", partial(_promise, ocean, [sea]))


def _renamed(pieces: list[list[Any]], order: list[int]) -> list[list[Any]]:
    """Return the pieces with digests of other ones, and with their sizes where possible."""
    return [[offset, size, pieces[other][2]] for (offset, size, _), other in zip(pieces, order, strict=True)]


def _promise(file: Values, sent: Sequence[bytes], sender: Sender, name: str) -> Values:
    sender.pieces(sent)
    return sender.submit(f"{sender.name}/{name}", {"files": [file]})


def _sets() -> Iterator[Attack]:
    """Yield shards and other sets of files that do not belong together."""

    def shard(number: int, of: int, name: str, total: int | None = None) -> bytes:
        entries = [unsigned("split.no", number, ValueType.UINT16), unsigned("split.count", of, ValueType.UINT16)]
        entries.append(KeyValue("split.tensors.count", ValueType.INT32, of if total is None else total))
        return file_bytes(entries, [tensor(name)])

    sets = {
        "one is missing": [shard(0, 3, "a"), shard(2, 3, "c")],
        "one comes twice": [shard(0, 3, "a"), shard(1, 3, "b"), shard(1, 3, "b2")],
        "of two sets": [shard(0, 2, "a"), shard(1, 3, "b")],
        "a tensor twice": [shard(0, 2, "a"), shard(1, 2, "a")],
        "more tensors than there are": [shard(0, 2, "a", 9), shard(1, 2, "b", 9)],
        "65,534 are missing": [shard(0, 65_535, "a")],
        "two whole models": [OTHER, small_model("Third", seed=3)],
        "a model and a shard": [OTHER, shard(1, 2, "b")],
        "a shard and noise": [shard(0, 2, "a"), b"GGUF" + bytes(50)],
    }
    for number, (what, data) in enumerate(sets.items()):
        files = [(f"m-{place + 1:05}-of-{len(data):05}.gguf", shard_bytes) for place, shard_bytes in enumerate(data)]
        yield Attack("sets that do not fit", what, partial(send_files, files, cuts=number % 2 * 2))


def _mutants(number: int, random: Random) -> Iterator[Attack]:
    """Yield mutated headers: files that the reader refuses, and some that it accepts."""
    target, first = HeaderTarget(), random.randrange(1 << 40)
    made = ((case, target.material(case)) for case in range(first, first + TRIED * number))
    tried = [(case, data, _is_read(data)) for case, data in made if 0 < len(data) < MUTANT_MAX_BYTES]
    sound = [mutant for mutant in tried if mutant[2]][: round(SOUND_SHARE * number)]
    bad = [mutant for mutant in tried if not mutant[2]][: number - len(sound)]
    for place, (case, data, _) in enumerate(bad):
        yield _one("mutants of headers", str(case), data, place)
    for case, data, _ in sound:
        send = partial(send_files, [("model.gguf", data)], publish=False)
        yield Attack("mutants that can be read", str(case), send, is_sound=True)


def _is_read(data: bytes) -> bool:
    try:
        read_header(MemorySource(data))
    except BadGguf:
        return False
    return True
