"""What a header and its organs say of a model, as short texts: architecture, licence, dtypes, vocabulary ..."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from organs.registry.catalog.tables import Model, ModelMetadata
from organs.registry.present.text import count_text

DTYPES_SHOWN = 6


def facts(model: Model, metadata: Iterable[ModelMetadata], dtypes: Iterable[str] | Mapping[str, int]) -> dict[str, str]:
    """At most ten facts by what they are called, in the order in which they are shown; those that are known.

    `dtypes` has one name for each tensor, or how many tensors there are of each dtype.
    """
    texts = {row.key: row.value for row in metadata}
    prefix = f"{model.architecture}."
    found = {
        "kind": model.kind if model.complete else "partial",
        "architecture": model.architecture,
        "licence": model.license,
        "parameters": count_text(model.parameters),
        "dtypes": _counted(dtypes),
        "blocks": texts.get(prefix + "block_count"),
        "embedding length": _grouped(texts.get(prefix + "embedding_length")),
        "context length": _grouped(texts.get(prefix + "context_length")),
        "vocabulary": _grouped(_vocabulary(texts, prefix)),
        "tokenizer": _tokenizer(texts),
    }
    return {name: text for name, text in found.items() if text}


def _counted(dtypes: Iterable[str] | Mapping[str, int]) -> str:
    """`29 Q8_0, 9 F32`, the most frequent first."""
    counts = sorted(Counter(dtypes).items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [f"{count:,} {dtype}" for dtype, count in counts[:DTYPES_SHOWN]]
    return ", ".join(shown + ["…"] * (len(counts) > DTYPES_SHOWN))


def _vocabulary(texts: Mapping[str, str], prefix: str) -> str | None:
    """How many tokens there are, or are announced. A list is kept as `[2048 × string]`."""
    tokens = texts.get("tokenizer.ggml.tokens", "")
    return tokens[1:].split(" ", 1)[0] if tokens.startswith("[") else texts.get(prefix + "vocab_size")


def _tokenizer(texts: Mapping[str, str]) -> str:
    kinds = (texts.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    return ", ".join(dict.fromkeys(kind for kind in kinds if kind))


def _grouped(text: str | None) -> str | None:
    """A whole number with separators; anything else as it is."""
    return f"{int(text):,}" if text is not None and text.isascii() and text.isdigit() else text
