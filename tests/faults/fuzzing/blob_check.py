"""The invariant of a damaged blob: reading it, completely or in part, gives the exact bytes or one typed refusal.

This holds for any random damage of the stored bytes, and also if an attacker has recomputed the checksum of the head,
because each chunk has its own. An attacker who recomputes that as well can serve other bytes, which `verify` finds.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from organs.registry.errors import CorruptBlob, MissingBlob
from organs.registry.store import BlobAddress, BlobReader, BlobStore
from tests.faults.fuzzing.blob_edits import BlobCase, BlobDamage, file_name, row_of
from tests.faults.fuzzing.blob_seeds import SEVERAL_CHUNKS, blob_seeds
from tests.faults.fuzzing.tally import ACCEPTED, outcome_of

FORGED = "read, and refused by verify: forged with fitting checksums"
WINDOWS = 3
"""The number of partial reads of each blob."""

Open = Callable[[BlobStore, BlobAddress], BlobReader]


class BlobTarget:
    """The target of damaged blobs."""

    def __init__(self, open_blob: Open = BlobStore.open) -> None:
        self._open = open_blob
        self._seeds = blob_seeds()
        self._plains = {seed.digest: seed.plain for seed in self._seeds}
        self._damage = BlobDamage(self._seeds)
        self._store = BlobStore(Path())

    def warm_up(self) -> None:
        """Create the store in a folder that the parent of the worker removes; read every seed from a file and a row."""
        self._store = BlobStore(Path(tempfile.mkdtemp(prefix="blobs-")))
        for seed in self._seeds:
            (self._store.backend.root / seed.digest[:2]).mkdir(exist_ok=True)
        for seed in self._seeds:
            place = file_name(seed.digest)
            in_row = row_of(seed)
            in_file = replace(in_row, file=place, inline=None)
            for case in (BlobCase(in_file, seed.stored, place), BlobCase(in_row)):
                outcome = self._try(case, Random(0))
                assert outcome == ACCEPTED, outcome
        assert len({seed.digest for seed in self._seeds}) == len(self._seeds) > SEVERAL_CHUNKS

    def try_case(self, number: int) -> str:
        """Damage a seed and read it."""
        random = Random(number)
        return self._try(self._damage.case(random), random)

    def material(self, number: int) -> bytes:
        """Return the stored bytes of a case, for inspection."""
        case = self._damage.case(Random(number))
        return case.content if case.content is not None else case.row.inline or b""

    def _try(self, case: BlobCase, random: Random) -> str:
        path = self._write(case)
        try:
            with self._open(self._store, case.row) as reader:
                return self._check(reader, case, random)
        except (CorruptBlob, MissingBlob) as error:
            return outcome_of(str(error))
        finally:
            if path is not None:
                _remove(path)

    def _check(self, reader: BlobReader, case: BlobCase, random: Random) -> str:
        truth = self._plains.get(case.row.digest)
        content, refusal = _attempt(reader.read)
        if not case.forged:
            assert content is None or content == truth, "read gives a wrong byte"
        for _ in range(WINDOWS):
            offset = random.randrange(reader.size_bytes + 1)
            size = random.choice((0, 1, 100, reader.size_bytes)) % (reader.size_bytes - offset + 1)
            part, _ = _attempt(partial(reader.read, offset, size))
            expected = content if case.forged else truth
            # Nothing is decoded for a part of no bytes, so it is also read of a blob that cannot be decoded.
            wanted = b"" if expected is None and size == 0 else expected and expected[offset : offset + size]
            assert part is None or part == wanted, "a wrong part"
            assert part is not None or content is None, "a part is refused although the whole was read"
        sound, accusation = _attempt(partial(_verified, reader))
        assert (sound is not None) == (content is not None and content == truth), "verify and the bytes disagree"
        if content is None:
            assert refusal is not None
            return outcome_of(str(refusal))
        return ACCEPTED if accusation is None else FORGED

    def _write(self, case: BlobCase) -> Path | None:
        """Create the file of the case, or its obstacle, at the path in the row."""
        if case.content is None:
            return None
        path = self._store.backend.root / case.place
        if case.obstacle == "folder":
            path.mkdir()
        elif case.obstacle == "link":
            other = self._store.backend.root / "other"
            other.write_bytes(case.content)
            path.symlink_to(other)
        else:
            path.write_bytes(case.content)
        return path


def _verified(reader: BlobReader) -> bytes:
    reader.verify()
    return b""


def _attempt(act: Callable[[], bytes]) -> tuple[bytes | None, CorruptBlob | None]:
    """Return the result of `act`, or its refusal."""
    try:
        return act(), None
    except CorruptBlob as error:
        return None, error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
