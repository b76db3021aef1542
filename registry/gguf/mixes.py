"""The mixes of tensor types that llama.cpp writes under names such as Q4_K_M: which tensor gets which type.

They follow `llama-quantize` without options, of the release 0.5 of llama.cpp. It counts matrices in the order of blocks
and names. Rows that are no whole blocks of a type get another one (`fallback_dtype`), and at last F16; later versions
stop with an error where no other type is left.

A matrix has a coarser or a finer type than the others by its role: the values of attention and the last matrix of the
feed-forward weigh most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from organs.registry.anatomy import Tower, WeightRole, can_be_quantised, place_of, role_of
from organs.registry.gguf.header import ByteSource, Header, TensorSpec
from organs.registry.gguf.read import read_array
from organs.registry.gguf.types import FILE_TYPES, DType, dtype_by_name

_BASES = {
    **{name: name for name in ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q6_K", "Q2_K")},
    **{name: name for name in ("IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")},
    **{name: name for name in ("TQ2_0", "TQ1_0")},
    "Q5_K_M": "Q5_K",
    "Q5_K_S": "Q5_K",
    "Q4_K_M": "Q4_K",
    "Q4_K_S": "Q4_K",
    "Q3_K_L": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_S": "Q3_K",
    "Q2_K_S": "Q2_K",
    "IQ3_M": "IQ3_S",
    "IQ3_XS": "IQ3_S",
    "IQ2_M": "IQ2_S",
    "IQ2_S": "IQ2_XS",
    "MXFP4_MOE": "MXFP4",
}
_FILE_TYPE_NUMBERS = {name: number for number, name in FILE_TYPES.items()} | {"MXFP4_MOE": 38}


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix of tensor types."""

    name: str
    dtype: DType
    """The type of most matrices."""
    file_type: int
    """The number of `general.file_type`."""


MIXES: Mapping[str, Mix] = {
    name: Mix(name, dtype_by_name(base), number)
    for name, base in _BASES.items()
    if (number := _FILE_TYPE_NUMBERS[name]) is not None
}
"""The mixes by their names."""


BLOCKS_LISTED_MAX = 1 << 16
"""The longest list of a hyperparameter by block that is read."""


@dataclass(frozen=True, slots=True)
class MixTraits:
    """What a mix depends on besides the tensors: hyperparameters, and whether there is an importance matrix."""

    architecture: str = ""
    blocks: int = 0
    experts: int = 0
    heads: int = 0
    key_heads: int = 0
    """Heads of keys and values: several heads of queries share one in grouped attention."""
    by_importances: bool = False

    @property
    def is_grouped(self) -> bool:
        """Whether at least four heads of queries share those of a key and a value, which then may be finer."""
        return self.key_heads > 0 and self.heads // self.key_heads >= 4

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp counts the model among those of 70 billion weights, with few values."""
        if self.blocks != 80 or self.experts == 8:
            return False
        grouped = self.architecture == "llama" and self.heads != self.key_heads
        return grouped or self.architecture in ("qwen2", "deci", "apertus")


def traits_of(header: Header, source: ByteSource) -> MixTraits:
    """Return the traits that `header`, read from `source`, states; absent numbers are 0, of a list the first counts."""
    architecture = header.architecture or ""

    def number(name: str) -> int:
        field = header.field(f"{architecture}.{name}")
        if field is not None and field.is_array and 0 < field.count <= BLOCKS_LISTED_MAX:
            first = next(iter(read_array(source, field)))
            return 0 if isinstance(first, bytes) else max(0, int(first))
        return max(0, header.integer(f"{architecture}.{name}") or 0)

    heads = number("attention.head_count")
    return MixTraits(
        architecture=architecture,
        blocks=number("block_count"),
        experts=number("expert_count"),
        heads=heads,
        key_heads=number("attention.head_count_kv") or heads,
    )


def mixed_dtypes(mix: str, tensors: Iterable[TensorSpec], traits: MixTraits) -> dict[str, DType]:
    """Return the type of each tensor that llama.cpp quantises, by name; all others keep theirs.

    `mix` is one of MIXES, and `tensors` are all of the model. Rows that are no whole blocks get `fallback_dtype`.
    """
    chosen = MIXES[mix]
    specs = sorted(tensors, key=lambda spec: (_counted_block(spec.name), spec.name))
    roles = {spec.name: role_of(place_of(spec.name)) for spec in specs}
    totals = Counter(roles.values())
    counts = Counter[WeightRole]()
    found = {}
    for spec in specs:
        if not is_quantised(spec):
            continue
        role = roles[spec.name]
        if chosen.dtype.block_elements == 1:
            found[spec.name] = chosen.dtype
            continue
        # Where a model has experts, the number of the block counts; their matrices are several in a block.
        block = place_of(spec.name).block or 0
        number = counts[role] if traits.experts <= 1 or role is WeightRole.VALUE else block
        place = _Place(spec, role, counts[role], number, totals[WeightRole.VALUE], WeightRole.OUTPUT not in totals)
        found[spec.name] = fallback_dtype(dtype_by_name(_dtype_name(chosen, place, traits)), spec.shape[0])
        counts[role] += 1
    return found


def is_quantised(spec: TensorSpec) -> bool:
    """Return whether llama.cpp quantises a tensor: a matrix or a stack of matrices, and no norm, bias or router."""
    return any(length > 1 for length in spec.shape[1:]) and can_be_quantised(spec.name)


FALLBACKS: Mapping[str, str] = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""The types of blocks of 32 values that take the place of those of 256, as in llama.cpp."""


def fallback_dtype(dtype: DType, row: int) -> DType:
    """Return `dtype`, or the type that takes its place for rows of `row` values, which are no whole blocks of it."""
    if row % dtype.block_elements == 0:
        return dtype
    other = dtype_by_name(FALLBACKS.get(dtype.name, "F16"))
    return other if row % other.block_elements == 0 else dtype_by_name("F16")


_WEIGHED = ("IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")


def wants_importances(name: str, dtype: DType, mix: str | None = None) -> bool:
    """Return whether llama.cpp writes a tensor as `dtype` only with its importances: the result would be useless."""
    if role_of(place_of(name)) in (WeightRole.EMBEDDING, WeightRole.OUTPUT):
        return False
    return dtype.name in _WEIGHED or (dtype.name == "Q2_K" and mix == "Q2_K_S")


@dataclass(frozen=True, slots=True)
class _Place:
    """A matrix as a mix sees it."""

    spec: TensorSpec
    role: WeightRole
    count: int
    """The matrices of its role before it."""
    number: int
    """That, or in mixtures of experts the number of its block."""
    values: int
    """The matrices of values in the model."""
    is_tied: bool
    """Whether the model has no output matrix, so that the token embedding serves as one."""


_IQ1, _IQ2 = ("IQ1_S", "IQ1_M"), ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_LOW = (*_IQ1, *_IQ2)
_IQ4 = ("IQ4_NL", "IQ4_XS")


def _dtype_name(mix: Mix, place: _Place, traits: MixTraits) -> str:
    role = place.role
    if role is WeightRole.OUTPUT or (role is WeightRole.EMBEDDING and place.is_tied):
        return _of_output(mix, place.spec.shape[0], traits)
    if mix.name == "MXFP4_MOE":
        is_stack = len(place.spec.shape) > 2 and place.spec.shape[2] > 1
        is_expert = role in (WeightRole.UP, WeightRole.GATE, WeightRole.DOWN)
        return "MXFP4" if is_stack and (is_expert or traits.architecture != "bailingmoe3") else "Q8_0"
    if role is WeightRole.EMBEDDING:
        return _EMBEDDINGS.get(mix.name, mix.dtype.name)
    if mix.name in _LOW:
        return _of_low(mix, place, traits)
    choose = _CHOICES.get(role)
    return mix.dtype.name if choose is None else choose(mix.name, place, traits) or mix.dtype.name


_EMBEDDINGS = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", *_IQ1), "Q2_K"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), "Q4_K"),
}


def _of_output(mix: Mix, row: int, traits: MixTraits) -> str:
    is_odd = traits.architecture == "falcon" or row % mix.dtype.block_elements
    if mix.dtype.name == "Q8_0" or mix.name == "MXFP4_MOE" or is_odd:
        return "Q8_0"
    return "Q5_K" if mix.name in (*_LOW, "IQ3_XXS") else "Q6_K"


def _of_low(mix: Mix, place: _Place, traits: MixTraits) -> str:
    """Return the type in mixes of at most 2.7 bits."""
    role, finer = place.role, "IQ3_S" if mix.name in ("IQ2_S", "IQ2_M") else "Q2_K"
    if role is WeightRole.VALUE:
        return "Q4_K" if traits.is_grouped or traits.experts >= 4 else finer
    if role is WeightRole.KEY and traits.experts == 8:
        return "Q4_K"
    if role is WeightRole.DOWN and place.count < traits.blocks // 8:
        return finer
    if role is WeightRole.ATTENTION_OUTPUT:
        if traits.experts == 8:
            return "Q5_K"
        return "IQ2_XXS" if mix.name in _IQ1 else "IQ3_S" if finer == "IQ3_S" else mix.dtype.name
    return mix.dtype.name


def _of_value(mix: str, place: _Place, traits: MixTraits) -> str | None:
    if traits.experts == 8:
        return "Q8_0"
    grouped = {"IQ3_M": "Q4_K", "Q3_K_L": "Q5_K", "Q3_K_M": "Q5_K" if place.count < 2 else "Q4_K"}
    grouped |= {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_XXS" if traits.by_importances else "IQ3_S"}
    grouped |= dict.fromkeys(("Q4_K_M", "Q5_K_M"), "Q6_K") if _has_more_bits(place.count, place.values) else {}
    grouped |= {"Q4_K_S": "Q5_K"} if place.count < 4 else {}
    if traits.is_grouped:
        grouped |= dict.fromkeys(("Q2_K", "Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S"), "Q4_K") | dict.fromkeys(_IQ4, "Q5_K")
    found = grouped.get(mix, MIXES[mix].dtype.name)
    return "Q5_K" if traits.is_70b and found in ("Q3_K", "Q4_K") else found


def _of_key(mix: str, _: _Place, traits: MixTraits) -> str | None:
    return "Q8_0" if traits.experts == 8 else _of_query(mix, _, traits)


def _of_query(mix: str, _: _Place, traits: MixTraits) -> str | None:
    return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(mix)


def _of_attention_output(mix: str, _: _Place, traits: MixTraits) -> str | None:
    if traits.architecture == "falcon":
        return "Q4_K" if mix == "Q3_K_L" else None
    if traits.experts == 8:
        finer = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", *_IQ4)
        return "Q5_K" if mix in finer else None
    finer_by_mix = {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}
    return finer_by_mix.get(mix)


def _of_down(mix: str, place: _Place, traits: MixTraits) -> str | None:
    number, blocks, is_falcon = place.number, traits.blocks, traits.architecture == "falcon"
    is_early, has_more = number < blocks // 8, _has_more_bits(number, blocks)
    chosen: dict[str, str | None] = {"Q2_K": "Q3_K", "Q3_K_L": "Q4_K" if is_falcon else "Q5_K"}
    chosen["Q3_K_M"] = "Q5_K" if number < blocks // 16 else "Q4_K" if not is_falcon or has_more else "Q3_K"
    chosen |= dict.fromkeys(("Q4_K_M", "Q5_K_M"), "Q6_K" if has_more else None)
    if is_falcon:
        chosen["Q4_K_M"] = "Q6_K" if number < blocks // 16 else "Q5_K" if has_more else "Q4_K"
    if is_early:
        chosen |= {"Q2_K_S": "Q4_K", "IQ3_M": "Q4_K"} | ({} if is_falcon else {"Q4_K_S": "Q5_K"})
        # Blocks with few bits go wrong in the first blocks: with importances in the plain types, without in others.
        finer = {"Q4_0": "Q4_1", "Q5_0": "Q5_1"} if traits.by_importances else dict.fromkeys(_IQ4, "Q5_K")
        chosen |= finer
    elif traits.experts == 8 and has_more:
        chosen["IQ3_M"] = "Q4_K"
    if not traits.by_importances:
        chosen["IQ3_XXS"] = "Q4_K" if is_early else "Q3_K"
    return chosen.get(mix)


def _of_gate_and_up(mix: str, place: _Place, traits: MixTraits) -> str | None:
    is_middle = traits.blocks // 8 <= place.number < 7 * traits.blocks // 8
    return "IQ3_XXS" if mix == "IQ3_XS" and is_middle else None


_CHOICES = {
    WeightRole.VALUE: _of_value,
    WeightRole.KEY: _of_key,
    WeightRole.QUERY: _of_query,
    WeightRole.ATTENTION_OUTPUT: _of_attention_output,
    WeightRole.DOWN: _of_down,
    WeightRole.GATE: _of_gate_and_up,
    WeightRole.UP: _of_gate_and_up,
}


def _has_more_bits(number: int, count: int) -> bool:
    """Return whether a matrix is in the first or last eighth of `count`, or a third one between."""
    return number < count // 8 or number >= 7 * count // 8 or (number - count // 8) % 3 == 2


def _counted_block(name: str) -> int:
    place = place_of(name)
    return place.block if place.block is not None and place.tower is Tower.TEXT else -1
