"""llama.cpp through its C interface, which the extension module of `xllamacpp` exports: a window in one batch.

llama.cpp's own server gives the probability of one token a request, and reads all weights for each token. Here one call
decodes a whole window and returns the logits of every position.

The structures of parameters differ between versions. They are taken from llama.cpp's functions for default values,
passed on as they are, and only their first members are set, which `_ContextParameters` names. `Decoder` checks the
result, and raises UnknownInterface if a function is missing or behaves differently.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_STRUCTURE_BYTES = 4096
"""More than any version's structure of parameters has."""
_LEVEL_ERROR = 4
LOGITS_MAX_BYTES = 64 * 1024 * 1024
"""A window is decoded in parts whose logits need at most so much memory."""
PART_MIN = 32

_Pointer = ctypes.c_void_p
_Int = ctypes.c_int32
_Ints = ctypes.POINTER(ctypes.c_int32)
_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class UnknownInterface(Exception):
    """The C interface of this version is not the expected one; the message is the end of a sentence."""


class Refused(Exception):
    """llama.cpp refused the model or a request."""


class _ModelParameters(ctypes.Structure):
    _fields_ = (("all", ctypes.c_uint64 * (_STRUCTURE_BYTES // 8)),)


class _ContextParameters(ctypes.Structure):
    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("others", ctypes.c_uint64 * (_STRUCTURE_BYTES // 8)),
    )


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


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (_Log, _Pointer)),
    "llama_model_default_params": (_ModelParameters, ()),
    "llama_model_load_from_file": (_Pointer, (ctypes.c_char_p, _ModelParameters)),
    "llama_model_get_vocab": (_Pointer, (_Pointer,)),
    "llama_model_free": (None, (_Pointer,)),
    "llama_vocab_n_tokens": (_Int, (_Pointer,)),
    "llama_tokenize": (
        _Int,
        (_Pointer, ctypes.c_char_p, _Int, _Ints, _Int, ctypes.c_bool, ctypes.c_bool),
    ),
    "llama_context_default_params": (_ContextParameters, ()),
    "llama_init_from_model": (_Pointer, (_Pointer, _ContextParameters)),
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


class Decoder:
    """A loaded model with a context of `context` tokens, that decodes one sequence; call `close`.

    Raises UnknownInterface, Refused if the model cannot be loaded, ImportError without `xllamacpp`.
    """

    def __init__(self, model: str, context: int, threads: int) -> None:
        self._library = _library()
        self._model = self._library.llama_model_load_from_file(
            model.encode(), self._library.llama_model_default_params()
        )
        if not self._model:
            raise Refused("the model cannot be loaded")
        self._vocabulary = self._library.llama_model_get_vocab(self._model)
        self._size = int(self._library.llama_vocab_n_tokens(self._vocabulary))
        part = max(PART_MIN, LOGITS_MAX_BYTES // (4 * max(1, self._size)))
        self._part = min(context, part)
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = context, 1
        parameters.n_batch = parameters.n_ubatch = self._part
        self._context = self._library.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise Refused("llama.cpp cannot create a context for the model")
        if (
            self._library.llama_n_ctx(self._context) < context
            or self._library.llama_n_batch(self._context) < self._part
        ):
            raise UnknownInterface("llama.cpp does not use the parameters of a context")
        self._library.llama_set_n_threads(self._context, threads, threads)
        self._memory = self._library.llama_get_memory(self._context)
        self._batch = self._library.llama_batch_init(self._part, 0, 1)

    def close(self) -> None:
        """Free the model."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def first_tokens(self) -> list[int]:
        """Return the special token that begins a text of this model, if there is one."""
        return self._tokenize("", special=True)[:1]

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of `text`, without special tokens."""
        return self._tokenize(text, special=False)

    def surprises(self, tokens: Sequence[int]) -> list[float]:
        """Return -ln of the probability of each token after the first, given the tokens before it, in nats.

        A logit that is not finite gives NaN or infinity.
        """
        assert len(tokens) >= 2
        if self._memory:
            self._library.llama_memory_clear(self._memory, True)
        parts = [self._decoded(tokens, start) for start in range(0, len(tokens) - 1, self._part)]
        surprises: list[float] = np.concatenate(parts).tolist()
        return surprises

    def _decoded(self, tokens: Sequence[int], start: int) -> NDArray[np.float64]:
        """Decode the tokens from `start` on, and return the surprises of the tokens after each."""
        batch, count = self._batch, min(self._part, len(tokens) - 1 - start)
        for place in range(count):
            batch.token[place] = tokens[start + place]
            batch.pos[place] = start + place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = 1
        batch.n_tokens = count
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise Refused(f"llama.cpp cannot decode a window: status {status}")
        pointer = self._library.llama_get_logits(self._context)
        if not pointer:
            raise Refused("the model gives no probabilities of tokens")
        logits = np.ctypeslib.as_array(pointer, (count, self._size))
        with np.errstate(all="ignore"):
            highest = logits.max(axis=1, keepdims=True)
            totals = np.exp(logits - highest).sum(axis=1, dtype=np.float64)
            following = np.asarray(tokens[start + 1 : start + 1 + count])
            chosen = logits[np.arange(count), following].astype(np.float64)
            result: NDArray[np.float64] = np.log(totals) + highest[:, 0] - chosen
        return result

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 8  # a token is at least a byte, and there are at most a few special ones
        tokens = (_Int * room)()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), tokens, room, special, False)
        if not 0 <= count <= room:
            raise Refused("llama.cpp cannot tokenize the text")
        return list(tokens[:count])


def _library() -> Any:
    """Return the functions of the C interface, with the log of errors on stderr."""
    from xllamacpp import xllamacpp as extension

    try:
        library = ctypes.CDLL(extension.__file__)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise UnknownInterface(f"llama.cpp's C interface is missing: {error}") from error
    library.llama_log_set(_LOG_CALLBACK, None)
    library.llama_backend_init()
    return library


def _log_errors(level: int, text: bytes, _user_data: object) -> None:
    if level == _LEVEL_ERROR:
        sys.stderr.write(f"0 E {text.decode('utf-8', 'replace')}")
        sys.stderr.flush()


_LOG_CALLBACK = _Log(_log_errors)  # llama.cpp keeps the address, so it must never be freed
