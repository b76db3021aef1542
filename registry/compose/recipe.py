"""The recipe: the composition that a person wants, by names. It resolves to a lock (`registry.compose.lock`).

The classes have the form of a recipe file, with the rules for each value. A recipe file is YAML, or JSON if it begins
with `{`; reading it reports all errors together, each with its field. The catalog stores recipes as JSON
(`recipe_to_json`).
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct
from msgspec.structs import replace

from organs.registry.compose.blend_steps import Blend, renamed_blend
from organs.registry.compose.selection import (
    MEASURED_QUERY,
    MODEL,
    WORD_MAX_LENGTH,
    BlockRange,
    Selection,
    checked_query,
    choice,
    range_text,
    ranges,
    read_query,
    sorts_itself,
    unique,
    within,
)
from organs.registry.documents import (
    NUMBER_PATTERN,
    ONE_OR_MORE,
    BadDocument,
    Limits,
    Parse,
    Reason,
    convert,
    line,
    parse_yaml,
    quoted,
)
from organs.registry.entities.base import prepared
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.plan import RecipeFile
from organs.registry.errors import BadName, BadQuery, BadRecipe
from organs.registry.gguf.mixes import MIXES, Mix
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, nearest, parse_model_name
from organs.registry.search.language import QUERY_MAX_LENGTH, RECIPE_BASE, parse_query
from organs.registry.transform import PurifyMethod as PurifyMethod
from organs.registry.transform.blend import PARAMETERS
from organs.registry.transform.values import FINER, SAME, WANTED

RECIPE_LIMITS = Limits(size_bytes=256 * 1024, depth=16, values=20_000)
STEPS_MAX = 1000
"""Grafts, adapters or purifications of one recipe; codes that it accepts."""
CODE_MAX_LENGTH = 64
SCALE_MAX = 100.0
KEY_MAX_LENGTH = 255
CHANGES_MAX = 1000
WHOLE_MIN, WHOLE_MAX = -(2**63), 2**64 - 1
"""Limits of the 64-bit integers of GGUF."""
FIXED_KEYS = ("general.type", "general.alignment", "general.quantization_version", "general.file_type")
"""Keys that describe the file; their values depend on its organs."""
FIXED_PREFIXES = ("tokenizer.", "split.", "general.base_model.", "organ_registry.", "quantize.imatrix.")
"""Keys of the base's vocabulary, of split files, of the parents, of this registry, and of the importance matrix."""
ARCHITECTURE_KEY = "general.architecture"
TEMPLATE_KEY = "tokenizer.chat_template"
"""The key of the chat template, and before a dot and a name that of a named one."""
TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
MetadataValue = str | int | float | bool | tuple[str, ...]

ENCODINGS = (SAME, FINER, *WANTED)
"""How computed organs are written; the first is the default."""
PROVED, GIVEN = "proved", "given"
"""From which weights blends and adapters are computed: those from which the given organs are proved to be quantised,
if these are known, or the given ones."""
PURIFY_METHODS = tuple(method.value for method in PurifyMethod)

WARNINGS = {
    "architecture-renamed": "the architecture in the header is set: runtimes read the file as another model",
    "template-unread": "the chat template cannot be parsed",
    "unrelated-lineage": "the tensors are no more alike than those of unrelated models",
    "lineage-unknown": "there is no fingerprint to compare the two models by",
    "adapter-base-differs": "the adapter names another model as its base",
    "other-scale": "a model of the same family and of another size",
    "rope-base-differs": "the donor was trained with another base frequency of its positions (RoPE)",
    "rope-scaling-differs": "the donor was trained with another scaling of its positions (RoPE)",
    "epsilon-differs": "the donor was trained with another epsilon of its norms",
    "context-differs": "the donor was trained for another context length",
    "activation-differs": "the feed-forward of the donor was trained with another activation",
    "tokenizer-differs": "the two models number tokens differently",
    "parent-yanked": "a parent, or a model that it was made from, was yanked by its publisher or an administrator",
    "parent-removed": "a model that a parent was made from was removed by an administrator",
    "non-finite-weights": "some weights are NaN or infinite; they spread to everything that the model computes",
    "licenses-conflict": "the licenses conflict, or one allows no derivatives",
    "change-lost-in-rounding": "rounding to the tensor type keeps less than half of the change",
    "rounded-twice": "matrices that are quantised already are quantised again: both errors of rounding add up",
}
"""The codes of warnings, which a recipe can accept, with their meaning."""
RETIRED_WARNINGS = frozenset({"likely-degraded"})
"""Codes of warnings that are no longer given. Recipes that accept them stay valid."""


def _sort(text: str) -> str:
    try:
        return str(parse_query("", default_sort=text, base=RECIPE_BASE).sort)
    except BadQuery as error:
        raise ValueError(error.reason) from error


class Graft(Selection, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Organs to take from `donor` (a model's name), or from the models that `where` (a query) finds.

    Exactly one of the two is set. `sort` ranks the results of the query; if it is empty, the query's own order is used,
    which is `-likeness` by default. A query finds only kin of the base, unless `strangers` is set or it names models.
    """

    donor: Annotated[str | None, MODEL] = msgspec.field(default=None, name="from")
    where: Annotated[str | None, line("a query", QUERY_MAX_LENGTH, checked_query)] = None
    sort: Annotated[str, line("a measure to rank by, such as -likeness", WORD_MAX_LENGTH, _sort)] = ""
    strangers: bool = False
    """Whether the query may also find organs of models that are not kin of the base."""

    def faults(self) -> Iterator[Reason]:
        """Yield what is wrong with the members together."""
        if self.donor is None and self.where is None:
            yield "", "it needs a donor (from: MODEL) or a query (where: QUERY)"
        if self.donor is not None and self.where is not None:
            yield "where", "use either from or where; model: in the query limits it to one model"
        if self.where is None:
            if self.sort:
                yield "sort", "sort needs where: QUERY"
            if self.strangers:
                yield "strangers", "strangers needs where: QUERY; from: MODEL takes the tensors of any model"
            return
        query = read_query(self.where)
        if query.finds_experts:
            yield "where", "the query ranks whole tensors: leave expert: out, and select experts with experts:"
        if self.sort and query.like is not None:
            yield "sort", "like: in the query already ranks by likeness: remove sort"
        elif self.sort and sorts_itself(self.where):
            yield "sort", f"the query already has sort:{query.sort}: remove one of the two"


class LayerRun(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Blocks of the result: those of the base, or of `donor`, in this order. Each may be there several times."""

    donor: Annotated[str | None, MODEL] = msgspec.field(default=None, name="from")
    blocks: Annotated[tuple[BlockRange, ...], ranges("a", "block", repeated=True)]


def _scale(scale: float) -> float:
    if scale == 0 or abs(scale) > SCALE_MAX:
        raise ValueError(f"{scale:g} is not a scale: it must be from -{SCALE_MAX:g} to {SCALE_MAX:g}, and not 0")
    return scale


class AdapterMerge(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename={"adapter": "from"}):
    """A low-rank adapter to add to the tensors that it adapts, `scale` times."""

    adapter: Annotated[str, MODEL]
    scale: Annotated[float, Parse(_scale, float, "a number such as 0.8")] = 1.0


def _method(word: str) -> PurifyMethod:
    return PurifyMethod(choice(PURIFY_METHODS, str.lower)(word))


def _keep(keep: float) -> float:
    if not 0 < keep <= 1:
        raise ValueError(f"the kept share of the energy is above 0 and at most 1, not {keep:g}")
    return keep


class RecipePurification(Selection, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Organs of the result to purify. `keep` is the share of the energy that `spectral` keeps."""

    method: Annotated[PurifyMethod, line(f"one of {', '.join(PURIFY_METHODS)}", WORD_MAX_LENGTH, _method)]
    where: Annotated[str, MEASURED_QUERY] = ""
    """A query on measures that narrows the selection further; empty for none."""
    keep: Annotated[float | None, Parse(_keep, float, "a share such as 0.9")] = None

    def faults(self) -> Iterator[Reason]:
        """Yield what is wrong with the members together."""
        if self.method is PurifyMethod.FRACTAL and self.keep is not None:
            yield "keep", "keep is for spectral; fractal chooses its own share"


TENSOR_TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_1", "Q5_K", "Q5_0", "Q4_1", "Q4_K", "Q4_0", "IQ4_NL", "IQ4_XS"),
    *("MXFP4", "Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "IQ1_M", "TQ1_0", "IQ1_S"),
)
"""The types in which matrices can be written, the largest first."""


def _written_as(word: str) -> str:
    return choice(tuple(dict.fromkeys((*TENSOR_TYPES, *MIXES))), str.upper)(word)


class ExpertChoice(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The experts that stay in blocks of the result: those of `keep`, or all but those of `drop`; one of both is set.

    `count`, `saliency` (the name of a file) and `by` are only read together with files (`registry.compose.files`),
    which puts `keep` in their place.
    """

    keep: Annotated[tuple[BlockRange, ...], ranges("an", "expert")] = ()
    drop: Annotated[tuple[BlockRange, ...], ranges("an", "expert")] = ()
    blocks: Annotated[tuple[BlockRange, ...], ranges("a", "block")] = ()
    """Empty for all blocks that have experts."""
    count: int | None = None
    saliency: str | None = None
    by: str | None = None

    def faults(self) -> Iterator[Reason]:
        """Yield what is wrong with the members together."""
        ranked = {"saliency": self.saliency, "count": self.count, "by": self.by}
        at = next((key for key, value in ranked.items() if value is not None), None)
        if at is not None:
            yield at, "only organ compose and Python choose experts by a file: write those to keep (keep: [0-31, 40])"
        elif bool(self.keep) == bool(self.drop):
            yield "", "it needs the experts to keep (keep: [0-31, 40]) or those to drop (drop: 7), not both"

    def kept(self, count: int) -> tuple[int, ...]:
        """Return the experts that stay of `count`, in rising order."""
        chosen: set[int] = set()
        for first, last in self.keep or self.drop:
            chosen.update(range(first, min(last + 1, count)))
        return tuple(number for number in range(count) if (number in chosen) == bool(self.keep))


class TypeRule(Selection, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The tensor type in which matrices of the result are written, or a mix of llama.cpp, which has one for each.

    A name that is both, such as Q6_K, is the mix in a rule that selects everything, and the type in other rules.
    """

    dtype: Annotated[str, line("a tensor type or a mix such as Q4_K_M", WORD_MAX_LENGTH, _written_as)] = msgspec.field(
        name="as"
    )

    def faults(self) -> Iterator[Reason]:
        """Yield what is wrong with the members together."""
        if self.experts:
            yield "experts", "all experts of a stack have one tensor type: select the stack by its slot"

    @property
    def mix(self) -> Mix | None:
        """The mix that the rule names; None for a tensor type."""
        selects = self.types or self.slots or self.blocks
        return None if selects and self.dtype in TENSOR_TYPES else MIXES.get(self.dtype)


def _code(word: str) -> str:
    if word in WARNINGS or word in RETIRED_WARNINGS:
        return word
    close = nearest(word, WARNINGS)
    raise ValueError(f"{quoted(word)} is not the code of a warning{f'; did you mean {close}?' if close else ''}")


def _metadata_key(key: str) -> str:
    if not (0 < len(key) <= KEY_MAX_LENGTH and key.isascii() and key.isprintable()):
        raise ValueError(f"a key has 1 to {KEY_MAX_LENGTH} characters of printable ASCII, such as general.name")
    if key in FIXED_KEYS:
        raise ValueError("the key follows from the tensors and cannot be set")
    named = key.removeprefix(f"{TEMPLATE_KEY}.")
    if key == TEMPLATE_KEY or (named != key and TEMPLATE_NAME.fullmatch(named)):
        return key
    for prefix in FIXED_PREFIXES:
        if key.startswith(prefix):
            others = "; the chat template is tokenizer.chat_template" if prefix == "tokenizer." else ""
            raise ValueError(f"keys that begin with {prefix} cannot be set{others}")
    return key


def _listed_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("this list can only have texts: put the value in quotation marks")  # noqa: TRY004
    return value


def _metadata_value(value: MetadataValue) -> MetadataValue:
    if isinstance(value, int) and not isinstance(value, bool) and not WHOLE_MIN <= value <= WHOLE_MAX:
        raise ValueError("the number is too large for 64 bits")
    return value


_TEXT_LIST = Annotated[
    tuple[Annotated[str, Parse(_listed_text, str | int | float | bool, "a text")], ...], Meta(max_length=CHANGES_MAX)
]
_METADATA_VALUE = Parse(
    _metadata_value, str | int | float | bool | _TEXT_LIST, "text, a number, true or false, or a list of texts"
)


def _new_name(text: str) -> str:
    try:
        name = parse_model_name(text)
    except BadName as error:
        raise ValueError(str(error)) from error
    if name.version is not None:
        raise ValueError("remove the version: the registry numbers versions")
    return text


def _encoding(word: str) -> str:
    return word.lower() if word.lower() in (SAME, FINER) else word.upper()


def _source(word: str) -> str:
    return word.lower() if word.lower() in (PROVED, GIVEN) else word


class Recipe(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The steps of a composition, in their order: layers, grafts, blends, adapters, purification, choice of experts,
    and the tensor types in which the result is written."""

    base: Annotated[str, line("the base model", MODEL_TEXT_MAX_LENGTH)]
    name: Annotated[str | None, line("a name such as acme/chimera", MODEL_TEXT_MAX_LENGTH, _new_name)] = None
    """The name of the chimera in the registry; None for a name by convention."""
    layers: Annotated[tuple[LayerRun, ...], Meta(max_length=STEPS_MAX)] = ()
    """The blocks of the result, in order; empty for those of the base."""
    grafts: Annotated[tuple[Graft, ...], Meta(max_length=STEPS_MAX)] = ()
    blends: Annotated[tuple[Blend, ...], Meta(max_length=STEPS_MAX), ONE_OR_MORE] = ()
    adapters: Annotated[tuple[AdapterMerge, ...], Meta(max_length=STEPS_MAX)] = ()
    purify: Annotated[tuple[RecipePurification, ...], Meta(max_length=STEPS_MAX), ONE_OR_MORE] = ()
    experts: Annotated[tuple[ExpertChoice, ...], Meta(max_length=STEPS_MAX), ONE_OR_MORE] = ()
    quantize: Annotated[tuple[TypeRule, ...], Meta(max_length=STEPS_MAX), ONE_OR_MORE] = ()
    """The types of the matrices; of several rules that select a matrix, the last counts."""
    imatrix: Annotated[str | None, line("the name of an importance matrix", MODEL_TEXT_MAX_LENGTH)] = None
    """A registered importance matrix, by which `quantize` weighs the errors of rounding."""
    encode: Annotated[str, line(f"one of {', '.join(ENCODINGS)}", WORD_MAX_LENGTH, choice(ENCODINGS, _encoding))] = SAME
    source: Annotated[str, line("proved, given, or the base's source", MODEL_TEXT_MAX_LENGTH, _source)] = PROVED
    """PROVED, GIVEN, or the model from which the base must be proved to be quantised."""
    accept: Annotated[
        tuple[str, ...],
        Parse(
            unique,
            Annotated[
                tuple[Annotated[str, line("a code such as unrelated-lineage", CODE_MAX_LENGTH, _code)], ...],
                Meta(max_length=STEPS_MAX),
            ],
            "a list of codes such as [unrelated-lineage]",
        ),
    ] = ()
    """Codes of warnings that are accepted."""
    metadata: Annotated[
        dict[Annotated[str, Parse(_metadata_key)], Annotated[MetadataValue, _METADATA_VALUE]],
        Meta(max_length=CHANGES_MAX),
    ] = {}
    """Metadata keys to set, and their values."""


def donors_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of all models besides the base, in the order of the steps, each once."""
    blended = (name for step in recipe.blends for donor in step.donors for name in (donor.model, donor.adapter))
    placed, grafted = (run.donor for run in recipe.layers), (graft.donor for graft in recipe.grafts)
    names = (*placed, *grafted, *blended, *(merge.adapter for merge in recipe.adapters), named_source(recipe))
    names = (*names, recipe.imatrix)
    return tuple(dict.fromkeys(name for name in names if name))


def kept_experts(recipe: Recipe, block: int | None, count: int) -> tuple[int, ...]:
    """Return the experts that a valid recipe keeps of the `count` experts in `block`, in rising order."""
    of_block = (choice for choice in recipe.experts if not choice.blocks or within(block or 0, choice.blocks))
    return next((choice.kept(count) for choice in of_block), tuple(range(count)))


def named_source(recipe: Recipe) -> str | None:
    """Return the model that a recipe names as the source of its base; None if it names none."""
    return None if recipe.source in (PROVED, GIVEN) else recipe.source


def renamed(recipe: Recipe, name_of: Callable[[str], str]) -> Recipe:
    """Return `recipe` with `name_of` each name of a base, a donor, an adapter and a source."""
    return replace(
        recipe,
        base=name_of(recipe.base),
        layers=tuple(run if run.donor is None else replace(run, donor=name_of(run.donor)) for run in recipe.layers),
        grafts=tuple(
            graft if graft.donor is None else replace(graft, donor=name_of(graft.donor)) for graft in recipe.grafts
        ),
        blends=tuple(renamed_blend(step, name_of) for step in recipe.blends),
        adapters=tuple(replace(merge, adapter=name_of(merge.adapter)) for merge in recipe.adapters),
        imatrix=None if recipe.imatrix is None else name_of(recipe.imatrix),
        source=recipe.source if named_source(recipe) is None else name_of(recipe.source),
    )


def with_versions(recipe: Recipe, models: Sequence[str]) -> Recipe:
    """Return `recipe` with the versions of `models`, the full names of the models that its names once meant.

    The first of `models` is the base. Names with a version, digests, queries and other names of donors stay as they
    are.
    """
    by_name: dict[str, set[str]] = {}
    for model in models:
        by_name.setdefault(model.partition("@")[0].casefold(), set()).add(model)

    def full_name(name: str) -> str:
        try:
            parsed = parse_model_name(name)
        except BadName:
            return name
        known = by_name.get(str(parsed).casefold(), set())
        return next(iter(known)) if len(known) == 1 else name

    named = renamed(recipe, full_name)
    try:
        has_version = parse_model_name(recipe.base).version is not None
    except BadName:  # a digest
        has_version = True
    return named if has_version else replace(named, base=models[0])


def recipe_to_json(recipe: Recipe) -> str:
    """Return `recipe` as JSON for the catalog."""
    return msgspec.json.encode(recipe).decode()


def recipe_from_json(text: str) -> Recipe:
    """Return the recipe that was stored as `text`; the rules of recipe files may have changed since then."""
    values: dict[str, Any] = json.loads(text)
    # The first version stored the names of attributes, the selection of a step as an object, and metadata as a list.
    former = {"donor": "from", "adapter": "from", "types": "type", "slots": "slot"}
    for steps in (values.get("grafts", ()), values.get("adapters", ()), values.get("purify", ())):
        for step in steps:
            step |= step.pop("selection", {})
            step |= {key: step.pop(name) for name, key in former.items() if name in step}
    if isinstance(values.get("metadata"), list):
        values["metadata"] = {change["key"]: change["value"] for change in values["metadata"]}
    return msgspec.convert(values, prepared(Recipe))


_SYNONYMS = {
    "title": "name",
    "base_model": "base",
    "accepted": "accept",
    "donors": "grafts",
    "tensor": "slot",
    "order": "sort",
    "unrelated": "strangers",
    "purification": "purify",
    **dict.fromkeys(("lora", "loras"), "adapters"),
    **dict.fromkeys(("dtype", "encoding"), "encode"),
    **dict.fromkeys(("quantise", "quantization", "quantisation", "quant"), "quantize"),
    **dict.fromkeys(("importances", "importance_matrix"), "imatrix"),
    "to": "as",
    **dict.fromkeys(("donor", "model"), "from"),
    **dict.fromkeys(("query", "search"), "where"),
    **dict.fromkeys(("layer", "layers"), "blocks"),
    "slices": "layers",
    "expert": "experts",
    **dict.fromkeys(("weight", "strength", "alpha"), "scale"),
}
"""Other words for keys. Misspelt keys are recognised without this table."""
_SELECTION_KEYS = Selection.__struct_encode_fields__
_CHOICE_KEYS = ("keep", "drop", "blocks")
_RANGES = ("blocks", "experts", "keep", "drop")
_ARGUMENTS = (
    *("donor", "method", "models", "where", *_SELECTION_KEYS),
    *("sort", "strangers", "scale", "keep", "drop", *PARAMETERS, "seed"),
)
"""Named arguments of steps in Python, in their order."""


def read_recipe(text: str | bytes, where: str = "recipe") -> Recipe:
    """Return the recipe in `text`: YAML, or JSON if it begins with `{`. `where` names the recipe in errors.

    Raises BadRecipe with all errors. Only the text is checked: models and compatibility are checked by a plan.
    """
    check_text(text, where)
    try:
        values = parse_yaml(text, RECIPE_LIMITS)
    except BadDocument as error:
        raise BadRecipe(where, error.reasons) from error
    return recipe_of_values(values, where)


def check_text(text: str | bytes, where: str) -> None:
    """Raise BadRecipe for the bytes of a model, which are no text."""
    if isinstance(text, bytes) and text.startswith(b"GGUF"):
        raise BadRecipe(where, [("", "this is a GGUF file, not a recipe")])


def recipe_of_values(values: object, where: str) -> Recipe:
    """Return the recipe of the `values` of a recipe file. Raises BadRecipe with all errors."""
    try:
        return convert(values, Recipe, synonyms=_SYNONYMS)
    except BadDocument as error:
        raise BadRecipe(where, error.reasons) from error


def recipe_findings(error: BadRecipe) -> list[Finding]:
    """Return the errors of a recipe as findings, for display with those of a plan."""
    return [
        Finding(
            Severity.REFUSE,
            "bad-recipe",
            f"{_capitalized(sentence)}{'' if sentence.endswith(('.', '?')) else '.'}",
            field,
        )
        for field, sentence in error.reasons
    ]


def parse_blocks(text: str) -> tuple[BlockRange, ...]:
    """Return the ranges in `text`, separated by commas: `0,2-5`. Raises BadRecipe."""
    words = [word.strip() for word in text.split(",")]
    try:
        return convert({"blocks": words[0] if len(words) == 1 else words}, Selection).blocks
    except BadDocument as error:
        raise BadRecipe(
            "blocks", [(path.removeprefix("blocks"), sentence) for path, sentence in error.reasons]
        ) from error


def _capitalized(sentence: str) -> str:
    """Return a sentence that begins with a capital letter, unless it begins with a name or a key."""
    return f"{sentence[:1].upper()}{sentence[1:]}" if sentence.split(" ", 1)[0].isalpha() else sentence


def recipe_values(recipe: Recipe) -> dict[str, object]:
    """Return the values of a recipe file, in a fixed order, without default values."""
    values = _entity_values(recipe)
    blends = values.get("blends", [])
    for blend in blends if isinstance(blends, list) else [blends]:
        for step in (blend, *blend.get("models", ())):
            step |= step.pop("parameters", {})
    return values


def _entity_values(recipe: Recipe) -> dict[str, Any]:
    """Return the values of a recipe as an entity has them: the parameters of a blend are an object of their own."""
    # JSON has lists for tuples, and refuses NaN.
    values: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(recipe), allow_nan=False))
    # msgspec omits the default object, and not an equal text or number that was read.
    for key, default in (("encode", SAME), ("source", PROVED)):
        if values.get(key) == default:
            values.pop(key)
    for adapter, step in zip(recipe.adapters, values.get("adapters", ()), strict=True):
        if adapter.scale == 1.0:
            step.pop("scale", None)
    steps = (values.get(key) for key in ("layers", "grafts", "blends", "purify", "quantize"))
    for step in (*_selections(steps), *values.get("experts", ())):
        listed = [key for key in {*_SELECTION_KEYS, *_CHOICE_KEYS} if isinstance(step.get(key), list)]
        for key in (key for key in listed if key in _RANGES):
            step[key] = [first if first == last else range_text((first, last)) for first, last in step[key]]
        step |= {key: _one_or_list(step[key]) for key in listed}
    for key in ("blends", "purify", "experts", "quantize"):
        if key in values:
            values[key] = _one_or_list(values[key])
    return values


def _selections(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield all objects that select organs, of steps and of the rules in them."""
    for value in values:
        if isinstance(value, dict):
            if not set(_SELECTION_KEYS).isdisjoint(value):
                yield value
            yield from _selections(value.values())
        elif isinstance(value, list):
            yield from _selections(value)


def _one_or_list(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def recipe_file(recipe: Recipe) -> RecipeFile:
    """Return the recipe as an entity, with the members of a recipe file."""
    return msgspec.convert(_entity_values(recipe), prepared(RecipeFile))


def recipe_of(base: str | Recipe | RecipeFile) -> Recipe:
    """Return a recipe itself, the recipe of an entity, or a recipe without steps for the name of a base.

    Raises BadRecipe for an entity with invalid members.
    """
    if isinstance(base, str):
        return Recipe(base)
    return base if isinstance(base, Recipe) else read_recipe(msgspec.json.encode(base))


_OTHER_BREAK = re.compile("[\r\x85\u2028\u2029]")


class _Dumper(yaml.SafeDumper):
    """A dumper that writes lists of plain values on one line, indents other lists, and quotes ambiguous texts."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        # Repeated values are written again, because recipes do not support anchors.
        return True

    def represent_list(self, data: Iterable[object]) -> yaml.SequenceNode:
        flow = all(isinstance(item, str | int | float) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # In other styles, the dumper writes these characters as line breaks, and a reader changes them.
        style = '"' if _OTHER_BREAK.search(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_list)
# `1e5` is text in YAML 1.1, which the dumper implements, and a number in YAML 1.2.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"{NUMBER_PATTERN.pattern}\Z"), list("-0123456789")
)


def recipe_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML, with one line for each value, and with quotation marks around ambiguous texts."""
    return document_yaml(recipe_values(recipe))


def document_yaml(values: Mapping[str, object]) -> str:
    """Return the values of a document as YAML: lists of plain values on one line."""
    return yaml.dump(
        values,
        Dumper=_Dumper,
        width=120,
        allow_unicode=True,
        sort_keys=False,
        default_flow_style=False,
    )


def _argument(name: str) -> str:
    """Return the name of an argument in Python."""
    return f"{name}_" if keyword.iskeyword(name) else name


def recipe_python(recipe: Recipe, file_name: str) -> str:
    """Return a program that makes the recipe and writes the file `file_name` to the current folder."""
    values: dict[str, Any] = recipe_values(recipe)
    calls = []
    kinds = (
        *(("layers", "layers", "blocks"), ("grafts", "graft", "from"), ("blends", "blend", "from")),
        *(("adapters", "adapter", "from"), ("purify", "purify", "method"), ("experts", "experts", "")),
        ("quantize", "quantize", "as"),
    )
    for key, verb, first in kinds:
        steps = values.get(key, [])
        for step in steps if isinstance(steps, list) else [steps]:
            for name in (name for name in (_CHOICE_KEYS if verb == "experts" else _SELECTION_KEYS) if name in step):
                words = step[name] if isinstance(step[name], list) else [step[name]]
                step[name] = ",".join(map(str, words))
            step |= {"donor": step.pop("from")} if verb == "layers" and "from" in step else {}
            arguments = [repr(step[first])] if first in step else []
            defaults = ("", False, None, 1.0 if verb == "adapter" else None)
            named = ((name, step[name]) for name in _ARGUMENTS if name in step and name != first)
            arguments += [
                f"{_argument(name)}={value!r}"
                for name, value in named
                if value not in defaults or (name in step and name in PARAMETERS)
            ]
            calls.append(f"{verb}({', '.join(arguments)})")
    calls += [f"imatrix({recipe.imatrix!r})"] if recipe.imatrix else []
    calls += [f"encode({recipe.encode!r})"] if recipe.encode != SAME else []
    calls += [f"source({recipe.source!r})"] if recipe.source != PROVED else []
    calls += [f"metadata({key!r}, {value!r})" for key, value in values.get("metadata", {}).items()]
    calls += [f"accept({', '.join(map(repr, recipe.accept))})"] if recipe.accept else []
    calls += [f"named({recipe.name!r})"] if recipe.name is not None else []
    lines = [
        "from organs.registry import open_registry",
        "",
        "with open_registry() as registry:",
        f"    chimera = registry.compose({recipe.base!r})",
        *(f"    chimera = chimera.{call}" for call in calls),
        f"    chimera.plan().assemble({file_name!r})",
    ]
    return "\n".join(lines) + "\n"
