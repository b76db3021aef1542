"""The invariant of a damaged file: it is refused with one sentence, or satisfies all invariants of an accepted file."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from organs.registry.anatomy import place_of
from organs.registry.errors import BadGguf, BadSplit
from organs.registry.gguf import Header, read_array, read_header
from organs.registry.gguf.header import ByteSource, field_type_text, field_value_text
from organs.registry.gguf.split import REASONS_MAX, check_split, is_shard
from organs.registry.gguf.tokenizer import tokenizer_reasons
from tests.faults.fuzzing.header_edits import edit_bytes, edit_parts
from tests.faults.fuzzing.header_parts import Assembled, Parts, assemble
from tests.faults.fuzzing.header_promises import NAME, Upload, check_measuring, check_pieces, refusal
from tests.faults.fuzzing.header_seeds import LARGE, header_seeds, shard_seeds
from tests.faults.fuzzing.tally import ACCEPTED, outcome_of
from tests.gguf_files import assert_invariants

LARGE_SHARE = 0.01
BYTES_SHARE = 0.8
"""The share of cases with damaged bytes. The others, and some of these, are files that an author could have written."""
HOLLOW_SHARE = 0.01
HOLLOW_MAX_BYTES = 1 << 20

Read = Callable[[ByteSource], Header]


class HeaderTarget:
    """The target of damaged files, for the reader and everything that relies on it."""

    def __init__(self, read: Read = read_header) -> None:
        self._read = read
        self._seeds = header_seeds()
        self._small = self._seeds[:-LARGE]
        self._files = [bytes(assemble(parts).data) for parts in self._seeds]
        shards = [bytes(assemble(parts).data) for parts in shard_seeds(self._seeds)]
        self._shards = [
            (f"{NAME}-{number}", read_header(Upload(data, len(data)))) for number, data in enumerate(shards)
        ]

    def warm_up(self) -> None:
        """Every seed must be accepted."""
        random = Random(0)
        for data in self._files:
            for _ in range(3):
                outcome = self._check(Upload(data, len(data)), random, every=True)
                assert outcome == ACCEPTED, outcome

    def try_case(self, number: int) -> str:
        """Damage a seed and read it."""
        random = Random(number)
        file = self._damaged(random)
        data = bytes(file.data)
        hollow = random.random() < HOLLOW_SHARE
        size = len(data) + random.randrange(HOLLOW_MAX_BYTES) if hollow else len(data)
        return self._check(Upload(data, size), random)

    def material(self, number: int) -> bytes:
        """Return the bytes of a case, for inspection."""
        return bytes(self._damaged(Random(number)).data)

    def _damaged(self, random: Random) -> Assembled:
        parts: Parts = random.choice(self._seeds[-LARGE:] if random.random() < LARGE_SHARE else self._small).copy()
        for _ in range(random.choice((0, 1, 1, 2, 2, 3))):
            edit_parts(parts, random, self._small)
        file = assemble(parts)
        if random.random() < BYTES_SHARE:
            for _ in range(random.choice((1, 1, 1, 2, 3))):
                edit_bytes(file, random, random.choice(self._files))
        return file

    def _check(self, source: Upload, random: Random, *, every: bool = False) -> str:
        try:
            header = self._read(source)
        except BadGguf as error:
            return outcome_of(refusal(error, source))
        assert header.file_size_bytes == source.size_bytes
        assert_invariants(header)
        self._check_reading(source, header)
        check_measuring(source, header, random, every=every)
        self._check_as_shard(header, random)
        if every or random.random() < 0.5:
            check_pieces(source, header)
        return ACCEPTED

    def _check_reading(self, source: Upload, header: Header) -> None:
        assert all(place_of(tensor.name) for tensor in header.tensors)
        for reason in tokenizer_reasons(source, header):
            assert reason.isprintable()
        for field in header.fields:
            field_type_text(field)
            field_value_text(field)
            if field.is_array:
                assert len(read_array(source, field)) == field.count

    def _check_as_shard(self, header: Header, random: Random) -> None:
        """Use the file as a shard; sometimes it is accepted."""
        if not is_shard(header) and random.random() < 0.9:
            return
        shards = list(self._shards)
        shards[random.randrange(len(shards))] = (NAME, header)
        random.shuffle(shards)
        try:
            order = check_split(NAME, shards)
        except BadSplit as error:
            assert 1 <= len(error.errors) <= REASONS_MAX + 1  # noqa: PT017  # the set may also be accepted
            return
        assert sorted(order) == list(range(len(shards)))
        assert [shards[index][1].integer("split.no") for index in order] == list(range(len(shards)))
