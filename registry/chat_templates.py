"""The chat templates of GGUF files, judged and rendered by a confined process (`registry.chat_trial`).

Nothing of a template is run in this process. What the child says is not trusted either: it may come from a template
that escaped. It can only be a known code with a short text.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import date
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from organs.registry.entities.base import Entity, Text, decode, encode, prepared
from organs.registry.errors import OrganError
from organs.registry.gguf.faults import HeaderFault
from organs.registry.gguf.header import ByteSource, Field, Header
from organs.registry.gguf.tokenizer import adds_bos, token_texts
from organs.registry.recent import RecentValues
from organs.registry.sandbox.process import ProcessLimits, Result, Sandbox, run_python

TEMPLATE_KEY = "tokenizer.chat_template"
TEMPLATES_MAX = 16
"""The most templates of one file that are tried. Files have one, or up to three with names."""
TEMPLATE_MAX_BYTES = 128 * 1024
"""The longest template that is tried. The longest in use have 25 KB."""
PROGRAM = "organs.registry.chat_trial"
LIMITS = ProcessLimits(
    wall_seconds=60.0,
    cpu_seconds=6,
    address_space_bytes=1024**3,
    file_size_bytes=0,
    output_max_bytes=64 * 1024,
)
"""A trial takes 0.2 s, most of it to start. It has one processor, and may have to wait for it."""
SENTENCE_MAX = 600
REMEMBERED_MAX = 256

TemplateCode = Literal[
    "template-broken",
    "template-fails",
    "template-refuses",
    "template-needs-tools",
    "template-no-system",
    "template-loses-text",
    "template-bos",
    "template-two-bos",
    "template-endless",
    "template-huge",
    "template-random",
    "template-escape",
    "template-reads-files",
    "template-address",
    "template-hidden-text",
    "template-condition",
    "template-switch",
    "template-turns",
    "template-date",
    "template-changes-values",
]
"""What a trial can find."""
TEMPLATE_CODES: tuple[str, ...] = get_args(TemplateCode)


class ChatTemplate(Entity):
    """A template of a file, with what it needs of the tokenizer: the order for a trial."""

    template: str
    bos: str
    eos: str
    adds_bos: bool


class _Line(Entity):
    """A line of the child."""

    code: TemplateCode | Literal["done"]
    sentence: Annotated[str, Meta(max_length=SENTENCE_MAX)]


def template_faults(source: ByteSource, header: Header, *, required: bool = False) -> list[HeaderFault]:
    """Return what is wrong with the chat templates in a header, in the order of their names.

    With `required`, they are only tried if this kernel can enforce the whole sandbox. A template that cannot be tried
    is a fault too.
    """
    named = _fields_of(header)
    faults = []
    for number, (name, field) in enumerate(named):
        if number == TEMPLATES_MAX:
            faults.append(
                HeaderFault("template-not-tried", f"only {TEMPLATES_MAX} of {len(named)} chat templates were tried")
            )
            break
        subject = f"{name}: " if name else ""
        faults += [
            HeaderFault(fault.code, subject + fault.sentence) for fault in _faults_of(source, header, field, required)
        ]
    return list(dict.fromkeys(faults))


def begin_trials(source: ByteSource, header: Header, *, required: bool = False) -> None:
    """Begin to try the templates in other processes; `template_faults` then waits for what is left."""
    for _, field in _fields_of(header)[:TEMPLATES_MAX]:
        if 0 < field.size_bytes <= TEMPLATE_MAX_BYTES:
            _begun(_order(source, header, field), required)


def _fields_of(header: Header) -> list[tuple[str, Field]]:
    """Return the fields with templates, each with its name; that of the usual one is empty."""
    prefix = f"{TEMPLATE_KEY}."
    return [
        (field.key.removeprefix(TEMPLATE_KEY).removeprefix("."), field)
        for field in header.fields
        if field.key == TEMPLATE_KEY or field.key.startswith(prefix)
    ]


def _faults_of(source: ByteSource, header: Header, field: Field, required: bool) -> list[HeaderFault]:
    if field.is_array or not isinstance(field.value, str | bytes | None):
        return [HeaderFault("template-broken", f"{field.key} is not a text")]
    if isinstance(field.value, bytes):
        return [HeaderFault("template-broken", f"{field.key} is not UTF-8")]
    if not field.size_bytes:
        return [HeaderFault("template-broken", f"{field.key} is empty")]
    if field.size_bytes > TEMPLATE_MAX_BYTES:
        limit = f"longer than {TEMPLATE_MAX_BYTES // 1024} KiB"
        return [
            HeaderFault(
                "template-not-tried", f"the chat template has {field.size_bytes:,} bytes: it is not tried, {limit}"
            )
        ]
    return _begun(_order(source, header, field), required).result()


def _order(source: ByteSource, header: Header, field: Field) -> ChatTemplate:
    text = field.value
    if not isinstance(text, str):
        text = source.read_at(field.offset, field.size_bytes).decode("utf-8", "replace")
    bos, eos = token_texts(source, header, ("bos", "eos"))
    return ChatTemplate(template=text, bos=bos, eos=eos, adds_bos=adds_bos(header))


_trials: OrderedDict[tuple[str, bool], Future[list[HeaderFault]]] = OrderedDict()
_lock = threading.Lock()


def _begun(order: ChatTemplate, required: bool) -> Future[list[HeaderFault]]:
    """Return the trial of a template, which runs, or ran before in this process."""
    encoded = encode(order)
    key = hashlib.sha256(encoded).hexdigest(), required
    with _lock:
        known = _trials.get(key)
        if known is not None:
            _trials.move_to_end(key)
            return known
        trial = _trials[key] = Future[list[HeaderFault]]()
        while len(_trials) > REMEMBERED_MAX:
            _trials.popitem(last=False)
    threading.Thread(target=_try, args=(encoded, required, trial), name="chat template", daemon=True).start()
    return trial


def _try(encoded: bytes, required: bool, trial: Future[list[HeaderFault]]) -> None:
    try:
        trial.set_result(list(_tried(encoded, required)))
    except BaseException as error:  # noqa: BLE001  # the thread that waits raises it
        trial.set_exception(error)


def _tried(encoded: bytes, required: bool) -> Iterator[HeaderFault]:
    lines: list[bytes] = []
    try:
        result = run_python(PROGRAM, LIMITS, Sandbox(required=required), encoded, lines.append)
    except (OrganError, OSError) as error:
        yield HeaderFault("template-not-tried", f"the chat template was not tried: {error}")
        return
    is_done = False
    for line in lines:
        try:
            found = msgspec.json.decode(line, type=prepared(_Line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield HeaderFault("template-escape", "the chat template made the program that tries it give another answer")
            return
        if found.code == "done":
            is_done = True
        else:
            yield HeaderFault(found.code, "".join(letter if letter.isprintable() else " " for letter in found.sentence))
    if not is_done:
        yield HeaderFault("template-endless", f"the trial of the chat template did not end: {_ending(result)}")


def _ending(result: Result) -> str:
    if result.stopped is not None:
        return result.stopped
    return f"it was ended by {result.signal_name}" if result.signal_name else "it ended without an answer"


class UnusableTemplate(Exception):
    """No conversation can be written in a template; the message is the reason, as the end of a sentence."""


FRAME_OUTPUT_MAX_BYTES = 2 * 1024 * 1024
FRAME_PARTS_MAX = 4096
REPEATS_MAX = 4
"""How often a frame may have its messages, on average. Otherwise a short prompt would take minutes to read."""


class _FrameOrder(Entity):
    """The order for the frame of a conversation: `chat_trial.TemplateFrame`."""

    template: str
    bos: str
    eos: str
    roles: tuple[str, ...]


class _FrameLine(Entity):
    """The answer."""

    parts: Annotated[tuple[Text | int, ...], Meta(max_length=FRAME_PARTS_MAX)] | None = None
    refused: Annotated[str, Meta(max_length=SENTENCE_MAX)] | None = None


FRAMES_MAX = 64
_frames = RecentValues[str, tuple[str | int, ...]](FRAMES_MAX)


def conversation_frame(
    source: ByteSource, header: Header, roles: Sequence[str], *, required: bool = False
) -> tuple[str | int, ...] | None:
    """Return the text of the usual template around the messages of these roles, and their numbers where they stand.

    The template ends where the model's answer begins. It never sees the messages, so it cannot depend on them, and what
    it returns for these roles is known for the other conversations of the day. Return None for a model without a
    template. Raises UnusableTemplate, and NoSandbox if `required` and not possible.
    """
    field = next((field for name, field in _fields_of(header) if not name), None)
    if field is None:
        return None
    if field.is_array or isinstance(field.value, bytes) or not 0 < field.size_bytes <= TEMPLATE_MAX_BYTES:
        raise UnusableTemplate("it is no text, or too long")
    order = _order(source, header, field)
    encoded = encode(_FrameOrder(template=order.template, bos=order.bos, eos=order.eos, roles=tuple(roles)))
    day = date.today()  # noqa: DTZ011  # templates write the day of this machine
    key = f"{day} {hashlib.sha256(encoded).hexdigest()}"
    return _frames.get(key, lambda: _frame_of(encoded, len(roles), required))


def _frame_of(encoded: bytes, messages: int, required: bool) -> tuple[str | int, ...]:
    lines: list[bytes] = []
    limits = replace(LIMITS, output_max_bytes=FRAME_OUTPUT_MAX_BYTES)
    result = run_python(PROGRAM, limits, Sandbox(required=required), encoded, lines.append)
    try:
        line = decode(lines[0], _FrameLine) if len(lines) == 1 else _FrameLine(refused=_ending(result))
    except ValueError as error:
        raise UnusableTemplate("it made the program that renders it give another answer") from error
    parts = line.parts
    if parts is None or any(isinstance(part, int) and not 0 <= part < messages for part in parts):
        raise UnusableTemplate(line.refused or _ending(result))
    if sum(isinstance(part, int) for part in parts) > REPEATS_MAX * messages:
        raise UnusableTemplate("it repeats the messages")
    return parts
