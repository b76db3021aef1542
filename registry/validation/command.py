"""Any other runtime, as a command template: `my-runtime --model {model} --file {text} --tokens {tokens}`.

The template is split into arguments like in a shell, but no shell runs. Placeholders are replaced, each an argument of
its own: `{model}` by the absolute path of the GGUF file (of a split set the first), `{text}` by that of a UTF-8 text,
`{tokens}` by the number of tokens of a window. `{model}` and `{text}` are required, or `{model}` and `{prompt}`, see
below. The command runs once for each window of each text, in the current folder. A window has CHARACTERS_A_TOKEN times
as many characters as tokens. Its environment is `PATH`, `LC_ALL`, `HOME` and `TMPDIR` (an empty folder that is removed
afterwards), and assignments before the command: `NAME=VALUE my-runtime ...`, with or without `env`.

The model is untrusted, the command is the user's own. It is confined (`registry.sandbox`): it may read the model, the
text, every file or folder that one of its arguments names, its own program with the `lib` folder beside it, and the
system's programs and libraries; it may write into `HOME`. The user grants more by name. It is started once, has no
sockets, and cannot start other processes unless the user allows that, as a shell script needs it.

It must end with 0, and the last line that it prints must be a JSON object:

    {"perplexity": 26.7, "tokens": 255}                      the tokens may be absent
    {"loads": true}                                          it loads, without a perplexity
    {"loads": false, "reason": "an unknown architecture"}    it does not load, with the reason

A template with `{prompt}` instead of `{text}` is for runtimes that only write text. The command runs once for each
model, with PROMPT. It must end with 0 and print text that can be read (`text_fault`); no perplexity is measured.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic

from organs.registry.digest import digest_of
from organs.registry.errors import BadSetting
from organs.registry.sandbox.process import ProcessLimits, Result, Sandbox, plain_text, run_confined
from organs.registry.validation.llama import model_files
from organs.registry.validation.runtime import (
    Failure,
    FailureKind,
    NoRuntime,
    RuntimeReading,
    Say,
    Score,
    ScoringRequest,
    Window,
    short_reason,
)
from organs.registry.validation.texts import spread_order

READ_OPTION, PROCESSES_OPTION = "--runtime-read", "--runtime-processes"
"""The options of `organ validate` that grant more."""
TEMPLATE_MAX_LENGTH = 4096
LINE_MAX_BYTES = 64 * 1024
CHARACTERS_A_TOKEN = 4
"""Most tokenizers make 3 to 5 characters of English a token."""
PERPLEXITY_MIN = 0.999
"""A perplexity is at least 1; this allows for rounding."""

PLACEHOLDERS = ("{model}", "{text}", "{tokens}")
PROMPT_PLACEHOLDER = "{prompt}"
_NEEDED = ("{model}", "{text}")
PROMPT = "Write a short paragraph about the sea, in complete sentences."
"""The prompt for runtimes that write text; the runtime applies the model's chat template to it."""
TEXT_MAX_LENGTH = 4096
"""Characters of the written text that are checked and stored."""
READABLE_SHARE = 0.9
"""The least share of characters of a readable text that can be printed."""
LETTERS_SHARE = 0.4
"""The least share of letters and digits in the characters of a readable text that are not spaces."""
REPEATED_SHARE = 0.15
"""A text of REPEATED_MIN_BYTES that zlib compresses to less than so much of its size repeats itself. Prose of this
size takes more than half."""
REPEATED_MIN_BYTES = 256
_MARKER = re.compile(r"<\|[A-Za-z_]{1,32}\|>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>")
"""A marker of a chat template. A runtime that applies the template reads markers as tokens, and prints none."""
_LAST_MARKER = re.compile(rf"(?:{_MARKER.pattern})\s*\Z")
"""The marker that ends a turn; some runtimes print it."""


_PROGRAMS = tuple(
    map(Path, ("/bin", "/usr/bin", "/usr/local/bin", "/usr/libexec", "/usr/share", "/opt", "/etc/alternatives"))
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_LINKS_MAX = 16
_SCRIPT_MARK, _BINARY_MARKS = b"#!", (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_FIRST_LINE_MAX_BYTES = 256
_INTERPRETERS_MAX = 4
_STARTS_OTHERS = ("env", "sh", "bash", "dash", "zsh", "ksh", "fish")
"""Interpreters whose scripts start other programs."""


class CommandRuntime:
    """A runtime by a command template."""

    def __init__(self, template: str, limits: ProcessLimits | None = None, sandbox: Sandbox | None = None) -> None:
        """Create the runtime; `sandbox` has permissions beyond those of every command.

        Raises BadSetting for an invalid template, NoRuntime if its program does not exist.
        """
        self._variables, self._arguments = _parse(template)
        self._limits = limits or ProcessLimits()
        self._granted = sandbox or Sandbox()
        program = shutil.which(self._arguments[0])
        if program is None:
            raise NoRuntime(
                f"the program {plain_text(self._arguments[0].encode())!r} does not exist, or is not in PATH"
            )
        self._arguments[0] = os.path.abspath(program)
        self._written: dict[Path, RuntimeReading] = {}
        status = os.stat(program)
        words = [f"{name}={value}" for name, value in self._variables.items()] + self._arguments
        self._identity = f"{shlex.join(words)}, {status.st_size} bytes of {status.st_mtime_ns}"

    @property
    def identity(self) -> str:
        """The command with its program's path, size and time: a different build is a different runtime."""
        return self._identity

    @property
    def has_references(self) -> bool:
        return False

    def read(self, request: ScoringRequest, say: Say) -> RuntimeReading:
        """Run the command once for each window, until it fails or the time is over; or once, to write text.

        Raises NoSandbox.
        """
        if PROMPT_PLACEHOLDER in self._arguments:
            if request.model not in self._written:  # there are no windows of which more could be scored
                self._written[request.model] = self._write(request, say)
            return self._written[request.model]
        size = CHARACTERS_A_TOKEN * request.window_tokens
        cuts = [[] if text.is_chat else _windows(text.text, size) for text in request.texts]
        order = sorted(
            (rank, number)
            for number, ranks in enumerate(request.ranks)
            for rank in ranks[: max(0, len(cuts[number]) - ranks.start)]
        )
        windows: list[list[Window]] = [[] for _ in request.texts]
        failure, log, begun = None, "", monotonic()
        with tempfile.TemporaryDirectory(prefix="organ-validation-") as folder:
            path = Path(folder, "text.txt")
            for done, (rank, number) in enumerate(order):
                if done and request.seconds is not None and monotonic() - begun > request.seconds:
                    break
                say(f"window {done + 1} of {len(order)}", done)
                path.write_bytes(cuts[number][rank].encode())
                result = self._run(request, path, Path(folder))
                log = result.log
                answer = _answer(result, request.window_tokens, cuts[number][rank])
                if isinstance(answer, Failure):
                    failure = answer
                    break
                if answer is not None:
                    windows[number].append(answer)
        scores = tuple(
            Score(text.name, tuple(own), len(cut), request.window_tokens * len(cut))
            for text, own, cut in zip(request.texts, windows, cuts, strict=True)
        )
        return RuntimeReading(self._explained(failure), scores, log=log)

    def missing_options(self) -> list[str]:
        """Return the options of `organ validate` that a script needs and does not have; none for other programs."""
        interpreters = list(_interpreters(Path(self._arguments[0])))
        if not all(interpreter.exists() for interpreter in interpreters):
            return []
        allowed = (*_PROGRAMS, *self._granted.read, *self._granted.run)
        places = [place for interpreter in interpreters for place in (interpreter, interpreter.resolve())]
        outside = [place for place in places if not any(map(place.is_relative_to, allowed))]
        options = [word for folder in dict.fromkeys(map(_prefix, outside)) for word in (READ_OPTION, str(folder))]
        if not self._granted.processes and any(interpreter.name in _STARTS_OTHERS for interpreter in interpreters):
            options.append(PROCESSES_OPTION)
        return options

    def _explained(self, failure: Failure | None) -> Failure | None:
        """Add to a failure what the program lacks if it is a script."""
        if failure is None or failure.kind is not FailureKind.CRASHED:
            return failure
        script = Path(self._arguments[0])
        interpreters, options = list(_interpreters(script)), self.missing_options()
        advice = ""
        if options:
            advice = f"it is a script for {interpreters[0]}, which may need {shlex.join(options)}"
        elif interpreters and not interpreters[-1].exists():
            advice = f"it is a script, and its interpreter {interpreters[-1]} does not exist"
        elif not interpreters and not _first_bytes(script).startswith(_BINARY_MARKS):
            advice = "it is not a program, and a script begins with a line such as #!/bin/sh"
        return replace(failure, reason=f"{failure.reason}; {plain_text(advice.encode())}") if advice else failure

    def _write(self, request: ScoringRequest, say: Say) -> RuntimeReading:
        """Let the command write text, and check it."""
        say("writing a text")
        with tempfile.TemporaryDirectory(prefix="organ-validation-") as folder:
            result = self._run(request, Path(folder, "text.txt"), Path(folder))
        failure, written = _end_failure(result), None
        if failure is None:
            text = result.output.decode("utf-8", "replace").strip()[:TEXT_MAX_LENGTH]
            fault = text_fault(text)
            failure = None if fault is None else Failure(FailureKind.REFUSED, fault)
            written = f"{PROMPT}\n{plain_text(text.encode())}"
        scores = tuple(
            Score(text.name, (), 0, 0 if text.is_chat else len(text.text) // CHARACTERS_A_TOKEN)
            for text in request.texts
        )
        return RuntimeReading(self._explained(failure), scores, written, log=result.log)

    def _run(self, request: ScoringRequest, text: Path, home: Path) -> Result:
        values = {
            "{model}": str(request.model.absolute()),
            "{text}": str(text),
            "{tokens}": str(request.window_tokens),
            PROMPT_PLACEHOLDER: PROMPT,
        }
        command = [values.get(argument, argument) for argument in self._arguments]
        environment = {
            "PATH": os.defpath,
            "HOME": str(home),
            "TMPDIR": str(home),
            "LC_ALL": "C.UTF-8",
            **self._variables,
        }
        sandbox = replace(
            self._granted,
            read=(*model_files(request.model), *self._places(), *self._granted.read),
            write=(home, *self._granted.write),
            run=(*_PROGRAMS, *self._granted.run, *self._granted.read),
        )
        return run_confined(command, self._limits, sandbox, environment, Path.cwd())

    def _places(self) -> list[Path]:
        """Return the paths in the template: its program with its libraries, and the files among its arguments."""
        named = [Path(word) for argument in self._arguments[1:] for word in (argument, argument.partition("=")[2])]
        places = [path for path in named if path.name and path.exists()]
        program = Path(self._arguments[0])
        for _ in range(_LINKS_MAX):  # follows links, such as from a virtual environment to its interpreter
            if program.parent.name == "bin":
                places += [program.parents[1] / name for name in ("lib", "lib64", "pyvenv.cfg")]
            if not program.is_symlink():
                break
            program = program.parent / program.readlink()
        return places


def _interpreters(script: Path) -> Iterator[Path]:
    """Yield the interpreter in the first line of a script, and the interpreter of that if it is a script too."""
    for _ in range(_INTERPRETERS_MAX):
        line = _first_bytes(script).partition(b"\n")[0]
        words = line.removeprefix(_SCRIPT_MARK).split()
        if not line.startswith(_SCRIPT_MARK) or not words:
            return
        script = Path(os.fsdecode(words[0]))
        yield script


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_FIRST_LINE_MAX_BYTES)
    except OSError:
        return b""


def _prefix(program: Path) -> Path:
    """Return the folder that a program was installed into, such as a virtual environment; else the program itself."""
    folder = program.parent.parent
    is_installed = program.parent.name == "bin" and folder != Path("/") and (folder / "lib").is_dir()
    return folder if is_installed else program


def _parse(template: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables before the command, and the command's arguments."""
    if len(template) > TEMPLATE_MAX_LENGTH or "\0" in template:
        raise BadSetting(f"a command template has at most {TEMPLATE_MAX_LENGTH} characters, and no NUL")
    try:
        arguments = shlex.split(template)
    except ValueError as error:
        raise BadSetting(f"the command template cannot be split into arguments: {error}") from error
    variables: dict[str, str] = {}
    if arguments[:1] == ["env"] and _ASSIGNMENT.match("".join(arguments[1:2])):
        del arguments[0]
    while arguments and _ASSIGNMENT.match(arguments[0]):
        name, _, variables[name] = arguments.pop(0).partition("=")
    for argument in arguments:
        known = (*PLACEHOLDERS, PROMPT_PLACEHOLDER)
        if argument not in known and any(placeholder in argument for placeholder in known):
            raise BadSetting(f"a placeholder must be an argument of its own: {argument[:80]!r}")
    writes = PROMPT_PLACEHOLDER in arguments[1:]
    if writes and "{text}" in arguments:
        raise BadSetting("the command template has {text} and {prompt}: give {text} for a runtime that scores texts")
    needed = ("{model}",) if writes else _NEEDED
    missing = [placeholder for placeholder in needed if placeholder not in arguments[1:]]
    if missing:
        example = f"my-runtime {' '.join(PLACEHOLDERS)}"
        raise BadSetting(f"the command template lacks {' and '.join(missing)}, as in: {example}")
    return variables, arguments


def _windows(text: str, size: int) -> list[str]:
    """Return the windows of `size` characters of a text, in the order of `spread_order`."""
    cut = [text[start : start + size] for start in range(0, len(text), size)]
    kept = [window for window in cut if len(window) == size] or cut[:1]
    return [kept[place] for place in spread_order(len(kept))]


def text_fault(text: str) -> str | None:
    """Return why a generated text shows that the model does not work, as a sentence; None if it can be read.

    It is a rough check: a text that cannot be read, repeats itself or has markers of the chat template is found; a text
    that makes no sense is not.
    """
    if not text:
        return "the runtime wrote no text: generation or the chat template failed"
    marker = _MARKER.search(_LAST_MARKER.sub("", text))
    if marker is not None:
        return f"the chat template was not applied: the text has the marker {marker[0]!r}"
    printable = sum(
        letter != "\N{REPLACEMENT CHARACTER}" and (letter.isprintable() or letter.isspace()) for letter in text
    )
    if printable < READABLE_SHARE * len(text):
        return f"the text is not coherent: only {printable / len(text):.0%} of its characters can be printed"
    visible = "".join(text.split())
    if sum(map(str.isalnum, visible)) < LETTERS_SHARE * len(visible):
        return "the text is not coherent: it has hardly any letters"
    data = text.encode("utf-8", "replace")
    if len(data) >= REPEATED_MIN_BYTES and len(zlib.compress(data)) < REPEATED_SHARE * len(data):
        return "the text is not coherent: it repeats itself"
    return None


def _answer(result: Result, tokens: int, text: str) -> Window | Failure | None:
    """Return the score that the command printed, or the failure; None if it printed only that the model loads."""
    failure = _end_failure(result)
    if failure is not None:
        return failure

    def refused(reason: str) -> Failure:
        return Failure(FailureKind.REFUSED, reason)

    line = (result.output.strip().splitlines() or [b""])[-1]
    if not line:
        return refused("the runtime printed nothing")
    if len(line) > LINE_MAX_BYTES:
        return refused(f"the last line of the runtime's output has more than {LINE_MAX_BYTES} bytes")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        shown = short_reason(plain_text(line[:80]))
        return refused(f"the last line of the runtime's output is not a JSON object: {shown!r}")
    if answer.get("loads") is False:
        reason = answer.get("reason")
        if not isinstance(reason, str) or not reason.strip():
            reason = "the runtime says that the model does not load"
        return refused(short_reason(reason))
    if "perplexity" not in answer:
        is_loaded = answer.get("loads") is True
        return None if is_loaded else refused("the runtime printed neither a perplexity nor whether the model loads")
    perplexity = _number(answer["perplexity"])
    if perplexity is None or perplexity < PERPLEXITY_MIN:
        shown = short_reason(json.dumps(answer["perplexity"]))
        return refused(f"the runtime printed an invalid perplexity: {shown}")
    count, stated = tokens, answer.get("tokens")
    if isinstance(stated, int) and not isinstance(stated, bool) and 0 < stated < 1 << 31:
        count = stated
    return Window(math.log(perplexity) * count, count, digest_of(text.encode())[:16])


def _end_failure(result: Result) -> Failure | None:
    """Return the failure of a command that did not end with 0."""
    if result.stopped is not None:
        return Failure(FailureKind.STOPPED, f"the runtime was stopped: {result.stopped}")
    if result.signal_name is not None:
        return Failure(FailureKind.CRASHED, f"the runtime crashed ({result.signal_name}){_last_words(result)}")
    if result.code:
        return Failure(FailureKind.CRASHED, f"the runtime ended with {result.code}{_last_words(result)}")
    return None


def _number(value: object) -> float | None:
    """Return a number as a float, NaN (which Python's parser accepts) as infinite; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return math.inf if math.isnan(value) else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _last_words(result: Result) -> str:
    lines = [line.strip() for line in result.log.splitlines() if line.strip()]
    return f": {short_reason(lines[-1])}" if lines else ""
