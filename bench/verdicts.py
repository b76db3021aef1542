"""Compare verdicts with long texts: do the built-in texts settle the sign of a change correctly?

    python examples/zoo/train.py --family deep      first, for each family (about half an hour each)
    python -m bench.verdicts FOLDER...              folders with the GGUF files of families, and examples/zoo
    python -m bench.verdicts FOLDER... --json FILE  everything as JSON too
    python -m bench.verdicts --times                how long a verdict takes on generated models of three sizes

Needs the extra `validate`. The grafts of each family (`family_trials`) are composed in a registry in a temporary folder
and validated twice: with the built-in texts and the default budget, and with 50,000 tokens or more of long texts of the
two kinds that the families were trained on. These are Python files and docstrings of the packages that are installed
beside this one. The families were trained on the standard library, so they have not seen them.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.amounts import change_text
from organs.registry.compose.recipe import AdapterMerge, Graft, Recipe
from organs.registry.digest import digest_of
from organs.registry.entities.validation import TextVerdict
from organs.registry.gguf import (
    KeyValue,
    MemorySource,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    read_header,
    write_file,
)
from organs.registry.local import LocalRegistry
from organs.registry.validation.comparison import CHANGED, ValidationBudget, file_candidate, validate
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import CatalogScores, registered_candidate, run_chimera
from organs.registry.validation.texts import ScoredText, built_in_texts
from organs.registry.validation.verdict import VerdictKind
from organs.registry.validation.weights import grafted_organs

ZOO = Path(__file__).resolve().parents[1] / "examples" / "zoo"
LONG_TOKENS = 51_000
LONG_BYTES = 240_000
"""About 80,000 tokens of the families' vocabulary of 2,048."""
SECTION_BYTES = 4_000
LONG_KINDS = ("python", "documentation")
ACCEPTED = (
    "unrelated-lineage",
    "lineage-unknown",
    "adapter-base-differs",
    "tokenizer-differs",
)
_NAME = re.compile(r"[^-]+-[^-]+-(?:(?P<part>.+)-)?v1\.0-[^-]+")
COMMON_WORDS = frozenset(
    ["the", "a", "is", "of", "to", "and", "in", "this", "that", "if", "it", "are", "be", "or", "for"]
)
SKIPPED = frozenset({"tests", "test", "testing", "__pycache__", "_vendor", "vendor"})


@dataclass(frozen=True, slots=True)
class TextResult:
    """The change of a graft on one kind of text, by the built-in and by the long text."""

    kind: str
    verdict: str
    settled: bool
    change: float | None
    margin: float | None
    long_change: float | None
    long_margin: float | None
    long_tokens: int

    @property
    def is_settled_sign(self) -> bool:
        """Whether the built-in text settles the sign of the change."""
        return self.change is not None and self.margin is not None and abs(self.change) > self.margin

    @property
    def agrees(self) -> bool:
        """Whether the sign is that of the long text."""
        return self.change is not None and self.long_change is not None and (self.change < 0) == (self.long_change < 0)

    @property
    def is_false_gain(self) -> bool:
        """Whether `gains` was said of a graft that loses on the long text beyond its error."""
        loses = self.long_change is not None and self.long_margin is not None and self.long_change > self.long_margin
        return self.verdict == VerdictKind.GAINS and loses


@dataclass(frozen=True, slots=True)
class GraftResult:
    """A graft with its verdict, the time that it took, and the results of the long texts."""

    family: str
    name: str
    verdict: str
    seconds: float
    texts: tuple[TextResult, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders with the GGUF files of families")
    parser.add_argument("--times", action="store_true", help="measure the time of a verdict only")
    parser.add_argument("--json", type=Path, help="write everything to this file too")
    options = parser.parse_args()
    if options.times:
        print_times()
        return
    texts = tuple(long_texts())
    results: list[GraftResult] = []
    for folder in options.folders:
        with tempfile.TemporaryDirectory() as home, LocalRegistry.open(home) as registry:
            names = ingested(registry, folder)
            for name, recipe in family_trials(names):
                results.append(measured(registry, folder.name, name, recipe, texts))
                print_result(results[-1])
                if options.json:
                    options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    print_summary(results)


SIZES = {"2 M": (192, 4, 512), "6 M": (256, 6, 768), "113 M": (768, 12, 3072)}
"""By the number of parameters: width, blocks, and width of the feed-forward of generated models."""


def print_times() -> None:
    """Print the time of a verdict on generated models: a base, and a chimera with another block 1."""
    for name, (width, blocks, feed_forward) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            base, chimera = Path(folder, "base.gguf"), Path(folder, "chimera.gguf")
            write_generated(base, width, blocks, feed_forward, changed=False)
            write_generated(chimera, width, blocks, feed_forward, changed=True)
            begun = time.monotonic()
            models = (file_candidate(chimera), file_candidate(base))
            changed_organs = grafted_organs(chimera, base)
            result = validate(*models, [], changed_organs, built_in_texts(), LlamaCpp(), act=CHANGED)
            minutes = (time.monotonic() - begun) / 60.0
        tokens = sum(text.tokens or 0 for text in result.texts)
        print(f"{name} parameters: {minutes:.1f} minutes, {tokens:,} tokens of {len(result.texts)} kinds", flush=True)


def write_generated(path: Path, width: int, blocks: int, feed_forward: int, *, changed: bool) -> None:
    """Write a Llama with Gaussian weights and the tokenizer of the zoo; `changed` gives block 1 other weights."""
    source = MemorySource((ZOO / "Zoo-A-2M-v1.0-F16.gguf").read_bytes())
    sizes = {"embedding_length": width, "block_count": blocks, "feed_forward_length": feed_forward}
    sizes |= {"attention.head_count": 6, "attention.head_count_kv": 6, "rope.dimension_count": width // 6}
    if width % 6:
        sizes |= {"attention.head_count": 8, "attention.head_count_kv": 8, "rope.dimension_count": width // 8}
    fields = [
        KeyValue(field.key, ValueType.UINT32, sizes[key])
        if (key := field.key.removeprefix("llama.")) in sizes
        else carry_over(source, field)
        for field in read_header(source).fields
    ]
    inside = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (width, width))
    inside |= {"ffn_gate": (width, feed_forward), "ffn_up": (width, feed_forward), "ffn_down": (feed_forward, width)}
    inside |= {"attn_norm": (width,), "ffn_norm": (width,)}
    shapes = {"token_embd": (width, 2048), "output_norm": (width,)}
    shapes |= {f"blk.{block}.{slot}": shape for block in range(blocks) for slot, shape in inside.items()}
    with path.open("wb") as stream:
        tensors = (_generated(name, shape, changed=changed) for name, shape in shapes.items())
        write_file(stream, fields, list(tensors))


def _generated(name: str, shape: tuple[int, ...], *, changed: bool) -> tuple[TensorSpec, bytes]:
    seed = int.from_bytes(name.encode(), "big") + (changed and name.startswith("blk.1.ffn_"))
    values = np.random.default_rng(seed).standard_normal(math.prod(shape), dtype=np.float32) * 0.02
    if len(shape) == 1:
        return TensorSpec(f"{name}.weight", shape, dtype_by_name("F32")), np.ones(shape, np.float32).tobytes()
    return TensorSpec(f"{name}.weight", shape, dtype_by_name("F16")), values.astype(np.float16).tobytes()


def long_texts() -> Iterator[ScoredText]:
    """Return a long text of Python and of documentation, from sections of the installed packages."""
    sources: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
        if not SKIPPED & set(path.parts) and 2_000 < path.stat().st_size < 200_000:
            try:
                sources.append(path.read_text("utf-8"))
            except (OSError, UnicodeDecodeError):
                continue
    prose = dict.fromkeys(paragraph for source in sources for paragraph in _docstrings(source))
    yield _named("python", _sections("\n\n".join(sources)))
    yield _named("documentation", _sections("\n\n".join(prose)))


def _sections(text: str) -> str:
    """Return sections that are evenly spread over a text, together LONG_BYTES."""
    count = LONG_BYTES // SECTION_BYTES
    starts = (len(text) * number // count for number in range(count))
    return "\n\n".join(text[start : start + SECTION_BYTES].partition("\n")[2] for start in starts)


def _docstrings(source: str) -> list[str]:
    """Return the paragraphs of prose in the docstrings of a module."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) for node in nodes if isinstance(node, holders))
    paragraphs = (" ".join(part.split()) for text in texts if text for part in text.split("\n\n"))
    return [part for part in paragraphs if _is_prose(part)]


def _is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is English sentences, not code or a list of parameters."""
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    words = paragraph.lower().split()
    common = sum(word in COMMON_WORDS for word in words)
    long_enough = len(paragraph) > 120 and paragraph[0].isupper() and paragraph.endswith((".", ":"))
    return long_enough and paragraph.isascii() and letters > 0.92 * len(paragraph) and common > 0.2 * len(words)


def _named(name: str, text: str) -> ScoredText:
    return ScoredText(name, text, digest_of(text.encode()))


def ingested(registry: LocalRegistry, folder: Path) -> dict[str, str]:
    """Register the models of a folder; return their names by the last parts of their file names: `Code`, `Step100`."""
    sources = find_sources([str(folder)])
    for source in sources:
        ingest_model(registry, source)
    stems = [path.stem for path in sorted(folder.glob("*.gguf"))]
    return {(_NAME.fullmatch(stem) or {"part": stem})["part"] or "Base": stem for stem in stems}


def family_trials(names: dict[str, str]) -> Iterator[tuple[str, Recipe]]:
    """Return grafts of a family into its base, from a step apart to strangers, whole and in part."""
    base = names["Base"]
    donors = [name for name in names if name not in ("Base", "LoRA")]

    def graft(
        donor: str, what: str, kinds: tuple[str, ...], blocks: tuple[tuple[int, int], ...] = ()
    ) -> tuple[str, Recipe]:
        return f"{donor} {what}", Recipe(
            base, grafts=(Graft(names[donor], types=kinds, blocks=blocks),), accept=ACCEPTED
        )

    for donor in donors:
        yield graft(donor, "feed-forward", ("organ",))
    for donor in donors[::5]:
        yield graft(donor, "feed-forward of block 1", ("organ",), ((1, 1),))
    for donor in donors[1::10]:
        yield graft(donor, "attention", ("skeleton",))
    yield "LoRA", Recipe(base, adapters=(AdapterMerge(names["LoRA"]),), accept=ACCEPTED)


def measured(
    registry: LocalRegistry, family: str, name: str, recipe: Recipe, texts: Sequence[ScoredText]
) -> GraftResult:
    """Compose and validate one graft with both suites."""
    chimera = registry.compose(recipe).plan().register().model
    runtime = LlamaCpp()
    begun = time.monotonic()
    short = run_chimera(registry.catalog, registry.blobs, chimera, built_in_texts(), runtime)
    seconds = time.monotonic() - begun
    budget = ValidationBudget(seconds=36_000.0, tokens=LONG_TOKENS, enough_tokens=LONG_TOKENS)
    names = (chimera, f"local/{recipe.base}")
    models = (registered_candidate(registry.catalog, registry.blobs, model) for model in names)
    long = validate(*models, (), (), texts, runtime, budget, cache=CatalogScores(registry.catalog))
    by_name = {text.name: text for text in short.texts}
    results = tuple(_compared(by_name[text.name], text) for text in long.texts)
    return GraftResult(family, name, short.verdict, seconds, results)


def _compared(short: TextVerdict, long: TextVerdict) -> TextResult:
    (change, margin), (long_change, long_margin) = map(_change_of, (short, long))
    return TextResult(
        short.name,
        short.verdict,
        short.settled,
        change,
        margin,
        long_change,
        long_margin,
        long.tokens or 0,
    )


def _change_of(text: TextVerdict) -> tuple[float | None, float | None]:
    """Return the mean change of a text in nats for each token, and its margin."""
    if text.ratio is None or text.ratio_margin is None:
        return None, None
    return math.log(text.ratio), text.ratio_margin / text.ratio


def print_result(result: GraftResult) -> None:
    """Print one graft."""
    cells = []
    for text in result.texts:
        mark = "" if not text.is_settled_sign else " ok" if text.agrees else " WRONG"
        cells.append(
            f"{text.verdict} {_text(text.change, text.margin)}, long {_text(text.long_change, text.long_margin)}{mark}"
        )
    print(
        f"{result.family} | {result.name} | {result.verdict} | {result.seconds:.0f} s | {' | '.join(cells)}", flush=True
    )


def _text(change: float | None, margin: float | None) -> str:
    if change is None or margin is None:
        return "-"
    ratio = math.exp(change)
    return change_text(ratio, ratio * margin)


def print_summary(results: Sequence[GraftResult]) -> None:
    """Print how many settled signs agree, the false gains, and the time of a verdict."""
    texts = [text for result in results for text in result.texts]
    settled = [text for text in texts if text.is_settled_sign]
    agreeing = sum(text.agrees for text in settled)
    false_gains = sum(text.is_false_gain for text in texts)
    seconds = [result.seconds for result in results]
    sys.stdout.write(
        f"\n{len(results)} grafts, {len(texts)} changes, {len(settled)} with a settled sign; of these {agreeing} agree "
        f"with the long text ({agreeing / max(1, len(settled)):.1%}); {false_gains} false gains; "
        f"{median(seconds):.0f} s a verdict in the median, {max(seconds):.0f} s at most; "
        f"{min(text.long_tokens for text in texts):,} tokens or more of each long text\n"
    )


if __name__ == "__main__":
    main()
