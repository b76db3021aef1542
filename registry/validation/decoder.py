"""llama.cpp through its C interface, which the extension module of `xllamacpp` exports: a window in one batch.

One call decodes a whole window and returns the logits of every position. To score, a `Decoder` works on one thread.
Several of them share the weights of a `LoadedModel`, and each decodes other windows. llama.cpp's own threads would wait
actively for each other, some hundred times in a window: on a busy machine two of them were ten times as slow as one.

The structures of parameters differ between versions. They are taken from llama.cpp's functions for default values,
passed on as they are, and only their first members are set, which `ContextParameters` names, and those that
`context_members` finds by their default values. What was set is checked by its effect. UnknownInterface is raised if a
function is missing or behaves differently.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

_STRUCTURE_BYTES = 4096
"""More than any version's structure of parameters has."""
_LEVEL_INFO, _LEVEL_ERROR = 2, 4
LOGITS_MAX_BYTES = 64 * 1024 * 1024
"""A window is decoded in parts whose logits need at most so much memory."""
PART_MIN = 32

_Pointer = ctypes.c_void_p
_Int = ctypes.c_int32
_Ints = ctypes.POINTER(ctypes.c_int32)
PIECE_MAX_BYTES = 1024
"""The bytes of one token that are read."""
REPEATED_TOKENS, REPEAT_PENALTY = 64, 1.2
_PLAIN_ATTRIBUTES = 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9
"""The attributes of tokens that are no markers: normal, a byte, and how they take the spaces around them."""
_ADDED_ATTRIBUTE = 1 << 4
"""The attribute of tokens that were added to the vocabulary: markers, but also runs of spaces, line ends and tabs."""
CHAT_TEXT_MAX_BYTES = 16 * 1024 * 1024
"""A conversation in a chat template is refused if it is longer."""

_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_Observer = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


class UnknownInterface(Exception):
    """The C interface of this version is not the expected one; the message is the end of a sentence."""


class ModelRefused(Exception):
    """llama.cpp refused the model or a request."""


class _ModelParameters(ctypes.Structure):
    _fields_ = (("all", ctypes.c_uint64 * (_STRUCTURE_BYTES // 8)),)


class ContextParameters(ctypes.Structure):
    """The parameters of a context: the first members, which have been in the same places for years, and all others."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("others", ctypes.c_uint64 * (_STRUCTURE_BYTES // 8)),
    )

    def put(self, place: int, form: str, *values: object) -> None:
        """Write values of the `form` of `struct` at `place`, in bytes from the beginning."""
        struct.pack_into(form, (ctypes.c_char * ctypes.sizeof(self)).from_buffer(self), place, *values)


@dataclass(frozen=True, slots=True)
class ContextMembers:
    """The places of members of the parameters of a context, in bytes from the beginning."""

    flash_attention: int
    """A number: -1 automatic, 0 off, 1 on."""
    callback: int
    """The address of the function that llama.cpp calls for each operation, and of its data."""
    cache_types: int
    """Two numbers: the tensor types of keys and of values in the cache."""
    full_windows: int
    """A byte: whether layers with a window of attention cache the whole context, too."""


_POINTER_BYTES = 8
_MEMBERS_FROM, _MEMBERS_TO = 16, 512
_F16 = 1
_SWITCHES = bytes((0, 1, 1, 1, 1, 0))
"""The defaults of embeddings, offload_kqv, no_perf, op_offload, swa_full and kv_unified, and the place of swa_full."""
_FULL_WINDOWS = 4


def context_members(defaults: bytes) -> ContextMembers:
    """Return where the members are in the default parameters of a context.

    They are in an order that is the same in all versions, with others between: four numbers that are -1 (how rope is
    scaled, pooling, attention, flash attention), the pointers of the callback, which are null, the types of the cache,
    which are F16, a null pointer, and switches. Raises UnknownInterface.
    """
    null, unset = bytes(_POINTER_BYTES), struct.pack("<i", -1)
    types = 2 * struct.pack("<i", _F16)
    pointers = range(_MEMBERS_FROM, _MEMBERS_TO, _POINTER_BYTES)
    callback = next((at for at in pointers if defaults[at:].startswith(2 * null + types + null)), None)
    numbers = range(_MEMBERS_FROM, callback or _MEMBERS_FROM, 4)
    first = next((at for at in numbers if defaults[at:].startswith(4 * unset)), None)
    if callback is None or first is None:
        raise UnknownInterface("this version of llama.cpp has other parameters of a context")
    cache_types = callback + 2 * _POINTER_BYTES
    after = range(cache_types + _POINTER_BYTES, cache_types + 8 * _POINTER_BYTES, _POINTER_BYTES)
    switches = next((at for at in after if defaults[at:].startswith(_SWITCHES)), None)
    if switches is None:
        raise UnknownInterface("this version of llama.cpp has other switches of a context")
    return ContextMembers(first + 3 * len(unset), callback, cache_types, switches + _FULL_WINDOWS)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", _Int),
        ("token", _Ints),
        ("embd", _Pointer),
        ("pos", _Ints),
        ("n_seq_id", _Ints),
        ("seq_id", ctypes.POINTER(_Ints)),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class _ChatMessage(ctypes.Structure):
    _fields_ = (("role", ctypes.c_char_p), ("content", ctypes.c_char_p))


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (_Log, _Pointer)),
    "llama_model_default_params": (_ModelParameters, ()),
    "llama_model_load_from_file": (_Pointer, (ctypes.c_char_p, _ModelParameters)),
    "llama_model_load_from_splits": (_Pointer, (ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, _ModelParameters)),
    "llama_model_get_vocab": (_Pointer, (_Pointer,)),
    "llama_model_free": (None, (_Pointer,)),
    "llama_model_n_ctx_train": (_Int, (_Pointer,)),
    "llama_model_has_encoder": (ctypes.c_bool, (_Pointer,)),
    "llama_model_chat_template": (ctypes.c_char_p, (_Pointer, ctypes.c_char_p)),
    "llama_vocab_n_tokens": (_Int, (_Pointer,)),
    "llama_vocab_is_eog": (ctypes.c_bool, (_Pointer, _Int)),
    "llama_vocab_get_attr": (_Int, (_Pointer, _Int)),
    "llama_vocab_get_add_bos": (ctypes.c_bool, (_Pointer,)),
    "llama_vocab_bos": (_Int, (_Pointer,)),
    "llama_chat_apply_template": (
        _Int,
        (ctypes.c_char_p, ctypes.POINTER(_ChatMessage), ctypes.c_size_t, ctypes.c_bool, ctypes.c_char_p, _Int),
    ),
    "llama_tokenize": (
        _Int,
        (_Pointer, ctypes.c_char_p, _Int, _Ints, _Int, ctypes.c_bool, ctypes.c_bool),
    ),
    "llama_token_to_piece": (_Int, (_Pointer, _Int, ctypes.c_char_p, _Int, _Int, ctypes.c_bool)),
    "llama_context_default_params": (ContextParameters, ()),
    "llama_init_from_model": (_Pointer, (_Pointer, ContextParameters)),
    "llama_free": (None, (_Pointer,)),
    "llama_n_ctx": (ctypes.c_uint32, (_Pointer,)),
    "llama_n_batch": (ctypes.c_uint32, (_Pointer,)),
    "llama_set_n_threads": (None, (_Pointer, _Int, _Int)),
    "llama_get_memory": (_Pointer, (_Pointer,)),
    "llama_memory_clear": (None, (_Pointer, ctypes.c_bool)),
    "llama_batch_init": (_Batch, (_Int, _Int, _Int)),
    "llama_batch_free": (None, (_Batch,)),
    "llama_decode": (_Int, (_Pointer, _Batch)),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), (_Pointer,)),
}


class LoadedModel:
    """A loaded model; close it with `opened`, or call `close` after its decoders are closed.

    Raises UnknownInterface, Refused if the model cannot be loaded, ImportError without `xllamacpp`.
    """

    def __init__(self, path: str | Sequence[str]) -> None:
        """Load a file, or the first of a split set; of a list, all shards, whatever their names are."""
        self.library = _library()
        parameters = self.library.llama_model_default_params()
        if isinstance(path, str):
            self.pointer = self.library.llama_model_load_from_file(path.encode(), parameters)
        else:
            paths = (ctypes.c_char_p * len(path))(*(shard.encode() for shard in path))
            self.pointer = self.library.llama_model_load_from_splits(paths, len(path), parameters)
        if not self.pointer:
            raise ModelRefused("the model cannot be loaded")
        self._vocabulary = self.library.llama_model_get_vocab(self.pointer)
        self.vocabulary_size = int(self.library.llama_vocab_n_tokens(self._vocabulary))

    def close(self) -> None:
        """Free the model."""
        self.library.llama_model_free(self.pointer)

    def first_tokens(self) -> list[int]:
        """Return the special token that begins a text of this model; empty if its texts begin without one."""
        if not self.library.llama_vocab_get_add_bos(self._vocabulary):
            return []
        token = int(self.library.llama_vocab_bos(self._vocabulary))
        return [token] if token >= 0 else []

    def tokens(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the tokens of `text`, without the first one of `first_tokens`.

        With `parse_special`, the names of special tokens in the text are these tokens, as in a chat template.
        """
        data = text.encode()
        room = len(data) + 8  # a token is at least a byte, and there are at most a few special ones
        tokens = (_Int * room)()
        count = self.library.llama_tokenize(self._vocabulary, data, len(data), tokens, room, False, parse_special)
        if not 0 <= count <= room:
            raise ModelRefused("llama.cpp cannot tokenize the text")
        return list(tokens[:count])

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`; special tokens have none."""
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of `token`, which may end within a character; without `special`, a special one has none."""
        piece = ctypes.create_string_buffer(PIECE_MAX_BYTES)
        size = self.library.llama_token_to_piece(self._vocabulary, token, piece, PIECE_MAX_BYTES, 0, special)
        return piece.raw[: max(0, size)]

    def is_marker(self, token: int) -> bool:
        """Return whether a token is one that a template writes, and no text: a special or an added one."""
        attributes = self.library.llama_vocab_get_attr(self._vocabulary, token) & ~_PLAIN_ATTRIBUTES
        if attributes == _ADDED_ATTRIBUTE:
            name = self.piece(token, special=True).decode("utf-8", "replace")
            return len(name) > 1 and not name.isspace()
        return bool(attributes)

    @property
    def context_tokens(self) -> int:
        """The tokens of the context with which the model was trained; 0 if it does not say."""
        return max(0, int(self.library.llama_model_n_ctx_train(self.pointer)))

    @property
    def has_encoder(self) -> bool:
        """Whether it translates a text instead of continuing it."""
        return bool(self.library.llama_model_has_encoder(self.pointer))

    def ends(self, token: int) -> bool:
        """Return whether a text of this model ends with this token."""
        return bool(self.library.llama_vocab_is_eog(self._vocabulary, token))

    def chat_template(self) -> str | None:
        """Return the model's own chat template, if it has one."""
        template = self.library.llama_model_chat_template(self.pointer, None)
        return template.decode("utf-8", "replace") if template else None

    def chat_text(self, template: str, conversation: Sequence[tuple[str, str]], *, asks: bool = False) -> str | None:
        """Return a conversation, roles and contents, in a chat template; None if llama.cpp does not know the template.

        With `asks`, the text ends where the model's answer begins.
        llama.cpp recognizes the templates of well-known families. Nothing that a template contains is executed.
        """
        messages = (_ChatMessage * len(conversation))(
            *(_ChatMessage(role.encode(), content.encode()) for role, content in conversation)
        )
        room = 2 * sum(len(role.encode()) + len(content.encode()) + 256 for role, content in conversation)
        for _ in range(2):
            answer = ctypes.create_string_buffer(room)
            size = self.library.llama_chat_apply_template(
                template.encode(), messages, len(messages), asks, answer, room
            )
            if size <= room or size > CHAT_TEXT_MAX_BYTES:
                break
            room = size
        return answer.raw[:size].decode("utf-8", "replace") if 0 <= size <= room else None


class Decoder:
    """A context of `tokens` tokens for a loaded model, that decodes one sequence on `threads` threads; call `close`.

    llama.cpp calls `observer` with the address of the result of each operation, first with True to learn whether it
    is wanted, then, for wanted ones, with False after it was computed. It must not raise, and returns False to stop.
    Raises UnknownInterface, Refused if llama.cpp cannot create it.
    """

    def __init__(
        self,
        model: LoadedModel,
        tokens: int,
        threads: int = 1,
        observer: Callable[[int, bool], bool] | None = None,
    ) -> None:
        self._model, self._library, self._size = model, model.library, model.vocabulary_size
        self._part = min(tokens, max(PART_MIN, LOGITS_MAX_BYTES // (4 * max(1, self._size))))
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = tokens, 1
        parameters.n_batch = parameters.n_ubatch = self._part
        if observer is not None:
            self._observer = _Observer(lambda tensor, is_question, _data: observer(tensor, is_question))
            address = ctypes.cast(self._observer, _Pointer).value
            parameters.put(context_members(bytes(parameters)).callback, "<Q", address)
        self._context = self._library.llama_init_from_model(model.pointer, parameters)
        if not self._context:
            raise ModelRefused("llama.cpp cannot create a context for the model")
        if self._library.llama_n_ctx(self._context) < tokens or self._library.llama_n_batch(self._context) < self._part:
            raise UnknownInterface("llama.cpp does not use the parameters of a context")
        self._library.llama_set_n_threads(self._context, threads, threads)
        self._memory = self._library.llama_get_memory(self._context)
        self._batch = self._library.llama_batch_init(self._part, 0, 1)

    def close(self) -> None:
        """Free the context."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)

    def logits(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Return an iterator over the logits after each but the last of `tokens`: some rows at a time, in order.

        Rows are positions and columns are the tokens of the vocabulary. An array is valid until the next one.
        """
        return self._parts(tokens[:-1])

    def evaluate(self, tokens: Sequence[int]) -> None:
        """Decode all `tokens`, of which an observer sees the operations."""
        for _ in self._parts(tokens):
            pass

    def _parts(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        self._clear()
        for start in range(0, len(tokens), self._part):
            yield self._decoded(tokens[start : start + self._part], start)

    def continuation(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the most likely tokens after `tokens`, at most `count`, until one that ends the text.

        Tokens among the last REPEATED_TOKENS are less likely, by REPEAT_PENALTY (Keskar et al. 2019, equation 2).
        """
        known = list(tokens)

        def choose(logits: NDArray[np.float32]) -> int:
            repeated = np.unique(known[-REPEATED_TOKENS:])
            logits[repeated] = np.where(
                logits[repeated] > 0, logits[repeated] / REPEAT_PENALTY, logits[repeated] * REPEAT_PENALTY
            )
            known.append(int(logits.argmax()))
            return known[-1]

        return list(islice(self.following(tokens, choose), count))

    def following(self, tokens: Sequence[int], choose: Callable[[NDArray[np.float32]], int]) -> Iterator[int]:
        """Yield the tokens after `tokens` until one that ends the text; the caller must stop at the end of the context.

        `choose` returns a token for the logits after the last one; it may change them.
        """
        self._clear()
        new, start = list(tokens), 0
        while True:
            for first in range(0, len(new), self._part):
                part = new[first : first + self._part]
                rows = self._decoded(part, start, last_only=True)
                start += len(part)
            logits = rows[-1].copy()
            if not np.isfinite(logits.max()):
                raise ModelRefused("the model's probabilities are not finite numbers")
            token = choose(logits)
            if self._model.ends(token):
                return
            yield token
            new = [token]

    def _clear(self) -> None:
        if self._memory:
            self._library.llama_memory_clear(self._memory, True)

    def _decoded(self, tokens: Sequence[int], start: int, *, last_only: bool = False) -> NDArray[np.float32]:
        """Decode `tokens`, of which the first has the position `start`; return the logits after each of them.

        With `last_only`, only those after the last of them are computed.
        """
        batch, count = self._batch, len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place] = token
            batch.pos[place] = start + place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = not last_only or place == count - 1
        batch.n_tokens = count
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise ModelRefused(f"llama.cpp cannot decode a window: status {status}")
        pointer = self._library.llama_get_logits(self._context)
        if not pointer:
            raise ModelRefused("the model gives no probabilities of tokens")
        logits: NDArray[np.float32] = np.ctypeslib.as_array(pointer, (1 if last_only else count, self._size))
        return logits


@contextmanager
def opened(path: str | Sequence[str]) -> Iterator[LoadedModel]:
    """Load a model from a file or from shards, and free it at the end."""
    model = LoadedModel(path)
    try:
        yield model
    finally:
        model.close()


def _library() -> Any:
    """Return the functions of the C interface, with the log of errors on stderr."""
    from xllamacpp import xllamacpp as extension

    try:
        library = ctypes.CDLL(extension.__file__)
    except OSError as error:
        raise UnknownInterface(f"llama.cpp's C interface is missing: {error}") from error
    declare(library, _FUNCTIONS)
    library.llama_log_set(_LOG_CALLBACK, None)
    library.llama_backend_init()
    return library


def declare(library: Any, functions: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> None:
    """Set the types of the results and the arguments of `functions`. Raises UnknownInterface if one is missing."""
    try:
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise UnknownInterface(f"llama.cpp's C interface is missing: {error}") from error


@contextmanager
def listening(take: Callable[[str], None]) -> Iterator[None]:
    """Call `take` with each line of information in llama.cpp's log, without its end."""
    _LISTENERS.append(take)
    try:
        yield
    finally:
        _LISTENERS.remove(take)


_LISTENERS: list[Callable[[str], None]] = []


def _log(level: int, data: bytes, _user_data: object) -> None:
    if level not in (_LEVEL_INFO, _LEVEL_ERROR):
        return
    text = data.decode("utf-8", "replace")
    if level == _LEVEL_ERROR:
        sys.stderr.write(f"0 E {text}")
        sys.stderr.flush()
    else:
        for take in _LISTENERS:
            take(text.rstrip("\n"))


_LOG_CALLBACK = _Log(_log)  # llama.cpp keeps the address, so it must never be freed
