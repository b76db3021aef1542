"""The metadata that a recipe sets: which keys it may, and to what."""

from __future__ import annotations

from organs.registry.compose.document import Listing
from organs.registry.compose.fields import Entry
from organs.registry.compose.recipe import MetadataChange

KEY_MAX_LENGTH = 255
CHANGES_MAX = 1000
WHOLE_MIN, WHOLE_MAX = -(2**63), 2**64 - 1
"""What a GGUF holds in 64 bits."""
FIXED_KEYS = (
    *("general.type", "general.architecture", "general.alignment"),
    *("general.quantization_version", "general.file_type"),
)
"""They say how the file is to be read, and follow from its organs."""
FIXED_PREFIXES = ("tokenizer.", "split.", "general.base_model.", "organ_registry.")
"""The base's vocabulary; where a file ends; who its parents are; what we write ourselves."""

_VALUE_DUE = "text, a number, true or false, or a list of texts"


def read_metadata(entry: Entry) -> tuple[MetadataChange, ...]:
    """The changes in the mapping `entry`, in its order."""
    pairs = entry.pairs("a mapping of metadata keys to values")
    if len(pairs) > CHANGES_MAX:
        entry.refuse(f"{len(pairs):,} keys stand there; at most {CHANGES_MAX:,} are taken")
        return ()
    changes = []
    for key, value_entry in pairs.items():
        _check_key(key, value_entry)
        value = _value(value_entry)
        if value is not None:
            changes.append(MetadataChange(key, value))
    return tuple(changes)


def _check_key(key: str, entry: Entry) -> None:
    if not (0 < len(key) <= KEY_MAX_LENGTH and key.isascii() and key.isprintable()):
        entry.refuse(f"a key is 1 to {KEY_MAX_LENGTH} characters of printable ASCII, such as general.name")
    elif key in FIXED_KEYS:
        entry.refuse("the key follows from the organs and cannot be set")
    elif key.startswith(FIXED_PREFIXES):
        prefix = next(prefix for prefix in FIXED_PREFIXES if key.startswith(prefix))
        entry.refuse(f"keys that begin with {prefix} cannot be set")


def _value(entry: Entry) -> str | int | float | bool | tuple[str, ...] | None:
    if isinstance(entry.node, Listing):
        texts = [_listed_text(item) for item in entry.items(_VALUE_DUE, CHANGES_MAX)]
        return tuple(text for text in texts if text is not None)
    value = entry.value(_VALUE_DUE)
    if isinstance(value, int) and not isinstance(value, bool) and not WHOLE_MIN <= value <= WHOLE_MAX:
        entry.refuse("the number is too large for 64 bits")
        return None
    return value


def _listed_text(entry: Entry) -> str | None:
    text = entry.value("a text")
    if text is None or isinstance(text, str):
        return text
    entry.refuse("a list here is one of texts: put it in quotation marks")
    return None
