"""The tensors of a GGUF file or a split set: compared with those of another, and zeroed in a copy, the control."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from organs.registry.anatomy import OrganType, expert_name, is_expert_stack, parse_expert_name, place_of
from organs.registry.digest import Digest
from organs.registry.errors import BadInput, BadSource, BadSplit, DiskFull, StoreUnwritable, UnsupportedDType
from organs.registry.gguf import quants
from organs.registry.gguf.header import Header, TensorInfo
from organs.registry.gguf.read import read_header
from organs.registry.gguf.split import ShardName, check_split, is_shard, parse_shard_name
from organs.registry.gguf.types import DType
from organs.registry.input_files import FileSource, read_pieces

SHARDS_MAX = 1024
CHAT_TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class Spot:
    """A tensor or an expert of one, and where its bytes are."""

    info: TensorInfo
    """The tensor."""
    file: FileSource
    offset: int
    size_bytes: int

    @property
    def expert_count(self) -> int:
        """The number of its experts; 0 if it is not a stack of experts."""
        shape = self.info.shape
        return shape[2] if len(shape) == 3 and is_expert_stack(place_of(self.info.name)) else 0

    def expert(self, number: int) -> Spot:
        """Return one of its experts."""
        size = self.size_bytes // self.expert_count
        return Spot(self.info, self.file, self.offset + number * size, size)

    def differs_from(self, other: Spot) -> bool:
        """Return whether the bytes differ from those of `other`, which has the same size."""
        return any(bytes(left) != bytes(right) for left, right in zip(self.chunks(), other.chunks(), strict=True))

    def chunks(self) -> Iterator[memoryview]:
        """Yield its bytes in pieces of 4 MiB; each is valid until the next one is read."""
        return read_pieces(self.file, self.offset, self.size_bytes)


class Weights:
    """The tensors of one model by name. A context manager, which opens all files of a split set."""

    def __init__(self, path: Path) -> None:
        """Open `path` and read the headers; raises BadSource, BadGguf and BadSplit."""
        with ExitStack() as stack:
            files = [stack.enter_context(FileSource(shard)) for shard in shard_paths(path)]
            headers = [read_header(file) for file in files]
            if len(files) > 1 or is_shard(headers[0]):
                order = check_split(
                    path.name, [(file.path.name, head) for file, head in zip(files, headers, strict=True)]
                )
                files, headers = [files[index] for index in order], [headers[index] for index in order]
            self.files = tuple(files)
            self.headers: tuple[Header, ...] = tuple(headers)
            self._open = stack.pop_all()
        self.spots = {
            info.name: Spot(info, file, header.data_offset + info.offset, info.size_bytes)
            for file, header in zip(self.files, self.headers, strict=True)
            for info in header.tensors
        }

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def organ(self, name: str) -> Spot | None:
        """Return the expert or the tensor `name`; None if there is none."""
        stack, number = parse_expert_name(name) or (name, 0)
        spot = self.spots.get(stack)
        if stack != name and spot is not None and number < spot.expert_count:
            return spot.expert(number)
        return self.spots.get(name)

    def changed_organs(self, name: str, base: Weights) -> Iterator[str]:
        """Yield `name` if this tensor differs from that of `base`, or the names of the experts that differ."""
        ours, theirs = self.spots[name], base.spots.get(name)
        if theirs is None or (ours.info.shape, ours.info.dtype) != (theirs.info.shape, theirs.info.dtype):
            yield name
            return
        numbers = range(ours.expert_count)
        changed = [number for number in numbers if ours.expert(number).differs_from(theirs.expert(number))]
        if 0 < len(changed) < len(numbers):
            yield from (expert_name(name, number) for number in changed)
        elif changed or (not numbers and ours.differs_from(theirs)):
            yield name


def grafted_organs(chimera: Path, base: Path) -> tuple[str, ...]:
    """Return the feed-forward organs of `chimera` that differ from those of `base`, in file order.

    Of a stack in which only some experts differ, these experts are returned. Raises BadSource, BadGguf and BadSplit.
    """
    with Weights(chimera) as ours, Weights(base) as theirs:
        names = filter(is_feed_forward, ours.spots)
        return tuple(organ for name in names for organ in ours.changed_organs(name, theirs))


def is_quantisation(model: Path, base: Path) -> bool:
    """Return whether most matrices of `model` have fewer bits than in `base`, and all other tensors are the base's.

    Types, shapes and the bytes of tensors in equal types are compared; not whether rounding gives the coarser ones.
    Raises BadSource, BadGguf and BadSplit.
    """
    with Weights(model) as ours, Weights(base) as theirs:
        if ours.spots.keys() != theirs.spots.keys():
            return False
        pairs = [(spot, theirs.spots[name]) for name, spot in ours.spots.items()]
        if any(own.info.shape != other.info.shape or own.size_bytes > other.size_bytes for own, other in pairs):
            return False
        same = [(own, other) for own, other in pairs if own.info.dtype == other.info.dtype]
        matrices = sum(any(length > 1 for length in own.info.shape[1:]) for own, _ in pairs)
        return 2 * (len(pairs) - len(same)) > matrices and not any(own.differs_from(other) for own, other in same)


def is_feed_forward(name: str) -> bool:
    """Return whether the tensor or expert `name` is feed-forward: the control zeroes such grafts."""
    stack, _ = parse_expert_name(name) or (name, 0)
    return place_of(stack).type is OrganType.ORGAN


def files_digest(path: Path) -> Digest:
    """Return the SHA-256 of all files of the model, one after another. Raises BadSource."""
    hasher = hashlib.sha256()
    for shard in shard_paths(path):
        with FileSource(shard) as file:
            for piece in read_pieces(file, 0, file.size_bytes):
                hasher.update(piece)
    return Digest(hasher.hexdigest())


def shard_paths(path: Path) -> list[Path]:
    """Return the files of the model at `path`: this file, or all shards of its set, by their names.

    Raises BadSplit for more than SHARDS_MAX shards.
    """
    shard = parse_shard_name(path.name)
    if shard is None or shard.count <= 1:
        return [path]
    if shard.count > SHARDS_MAX:
        raise BadSplit(path.name, [f"{shard.count} shards are over the limit of {SHARDS_MAX}"])
    return [path.with_name(str(ShardName(shard.stem, number, shard.count))) for number in range(1, shard.count + 1)]


def write_control(model: Path, names: Iterable[str], target: Path) -> None:
    """Write to `target`, which must not exist, a copy of the file `model` in which the tensors `names` are zero bytes.

    A name can also be that of an expert, with its number: `blk.3.ffn_up_exps.weight[17]`.

    Zeroed ranges are holes if the file system supports them; other bytes are shared with `model` if possible, else
    copied. A failure leaves no file. Raises BadInput for an unknown name and for a split set, UnsupportedDType if zero
    bytes may not mean zeros, DiskFull, StoreUnwritable, BadSource, BadGguf.
    """
    from organs.registry.store.files import FULL, copy_bytes  # the scorer, which loads this module, needs no store

    with Weights(model) as weights:
        if len(weights.files) > 1:
            raise BadInput(f"{model.name}: a control is made from a single file, not from a split set")
        spans = []
        for name in dict.fromkeys(names):
            spot = weights.organ(name)
            if spot is None:
                raise BadInput(f"{weights.files[0].name}: there is no tensor {name[:80]!r} to zero")
            if not zero_bytes_mean_zero(spot.info.dtype):
                raise UnsupportedDType(f"{name}: zero bytes of {spot.info.dtype.name} may not mean zeros")
            spans.append((spot.offset, spot.offset + spot.size_bytes))
        source = weights.files[0]
        spans += [(source.size_bytes, source.size_bytes)]
        try:
            descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.ftruncate(descriptor, source.size_bytes)
                position = 0
                for begin, end in sorted(spans):
                    copied = copy_bytes(source.descriptor, descriptor, position, begin)
                    if copied < begin:
                        raise BadSource(f"{source.name}: ends at byte {copied}, shorter than when it was opened")
                    position = end
            except BaseException:
                with suppress(OSError):
                    os.unlink(target)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            kind = DiskFull if error.errno in FULL else StoreUnwritable
            raise kind(f"{target}: the control cannot be written: {error.strerror}") from error


def zero_bytes_mean_zero(dtype: DType) -> bool:
    """Return whether a tensor of zero bytes is a tensor of zeros, by its decoder; False without a decoder.

    Quantised blocks are a scale times integers, and the scale of zero bytes is 0. This holds for every dtype that can
    be decoded; a test checks each.
    """
    if not quants.can_dequantize(dtype):
        return False
    return not np.any(quants.decode(bytes(dtype.block_bytes), dtype))
