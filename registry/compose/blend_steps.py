"""Blends in recipes: which models with which parameters, along the depth and by type of organ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from organs.registry.anatomy import Place
from organs.registry.compose.selection import MEASURED_QUERY, MODEL, WORD_MAX_LENGTH, Selection, choice
from organs.registry.documents import Parse, Reason, line, quoted
from organs.registry.names import nearest
from organs.registry.transform.blend import METHODS, PARAMETERS, Method, Number

BLENDED_MAX = 16
"""Models of one blend besides the base."""
SETTINGS_MAX = 1000
"""Numbers or rules of one parameter: one for each block, and for some slots; models have up to a few hundred blocks."""
BLEND_DEFAULT = "task_arithmetic"
"""The method of blends: the differences of other models from the base, each times its weight, are added."""


class SettingRule(Selection, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The value of a parameter for the organs that it selects: a number, or numbers along the depth."""

    value: float | Annotated[tuple[float, ...], Meta(min_length=1, max_length=SETTINGS_MAX)]


Setting = bool | float | tuple[float | SettingRule, ...]
"""The value of a parameter of a blend: one for all organs; numbers along the depth, between which it is interpolated;
or rules, of which the first that selects an organ counts."""


def _parameter(name: str) -> str:
    if name in PARAMETERS:
        return name
    close = nearest(name, PARAMETERS)
    raise ValueError(f"{quoted(name)} is not a parameter of blends{f'; did you mean {close}?' if close else ''}")


_Settings = Annotated[
    dict[
        Annotated[str, Parse(_parameter)],
        bool | float | Annotated[tuple[float | SettingRule, ...], Meta(min_length=1, max_length=SETTINGS_MAX)],
    ],
    Meta(max_length=len(PARAMETERS)),
]


def numbers_of(setting: Setting) -> Iterator[float]:
    """Yield all numbers of a setting."""
    for item in setting if isinstance(setting, tuple) else (setting,):
        yield from numbers_of(item.value) if isinstance(item, SettingRule) else (item,)


def _setting_faults(settings: Mapping[str, Setting], method: Method, *, each: bool) -> Iterator[Reason]:
    """Yield what is wrong with the parameters of a blend, or if `each` of one of its models."""
    for name, setting in settings.items():
        parameter = PARAMETERS[name]
        if name not in method.defaults:
            yield name, f"the method has no such parameter; it has {', '.join(method.defaults) or 'none'}"
        elif each and not parameter.is_each:
            yield name, "it is for all models together: give it beside the method"
        elif parameter.kind is bool and not isinstance(setting, bool):
            yield name, "it is true or false"
        elif parameter.kind is not bool and isinstance(setting, bool):
            yield name, "it is a number"
        elif parameter.kind is int and not (isinstance(setting, float) and setting.is_integer()):
            yield name, "it is a whole number"
        elif not all(parameter.low <= number <= parameter.high for number in numbers_of(setting)):
            yield name, f"it is from {parameter.low:g} to {parameter.high:g}"
        elif isinstance(setting, tuple) and len({isinstance(item, SettingRule) for item in setting}) > 1:
            yield name, "it is a list of numbers or a list of rules, not both"


def setting_at(setting: Setting, place: Place, depth: float) -> float | None:
    """Return the value of `setting` for an organ; None if no rule selects it.

    `depth` is 0 for the first block and 1 for the last. An organ outside of blocks has the first number of a list.
    """
    if not isinstance(setting, tuple):
        return setting
    rule = next((item for item in setting if isinstance(item, SettingRule) and item.holds(place)), None)
    if rule is not None:
        return setting_at(rule.value, place, depth)
    numbers = [item for item in setting if not isinstance(item, SettingRule)]
    if not numbers:
        return None
    position = 0.0 if place.block is None else depth * (len(numbers) - 1)
    before = min(int(position), len(numbers) - 1)
    after = min(before + 1, len(numbers) - 1)
    return numbers[before] + (numbers[after] - numbers[before]) * (position - before)


class BlendDonor(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A model of a blend, with the parameters of its own. With `adapter`, that adapter is added to it first."""

    gathers: ClassVar = ("parameters", tuple(name for name, item in PARAMETERS.items() if item.is_each))
    model: Annotated[str, MODEL] = msgspec.field(name="from")
    adapter: Annotated[str | None, MODEL] = None
    parameters: _Settings = msgspec.field(default_factory=dict)


class Blend(Selection, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Organs that are computed from those of the base and of other models: `donor`, or several `models`."""

    gathers: ClassVar = ("parameters", tuple(PARAMETERS))
    method: Annotated[str, line(f"one of {', '.join(METHODS)}", WORD_MAX_LENGTH, choice(tuple(METHODS), str.lower))] = (
        BLEND_DEFAULT
    )
    donor: Annotated[str | None, MODEL] = msgspec.field(default=None, name="from")
    models: Annotated[tuple[BlendDonor, ...], Meta(max_length=BLENDED_MAX)] = ()
    parameters: _Settings = msgspec.field(default_factory=dict)
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """Of random masks."""
    where: Annotated[str, MEASURED_QUERY] = ""
    """A query on measures of the base's organs that narrows the selection further; empty for none."""

    @property
    def donors(self) -> tuple[BlendDonor, ...]:
        """The models, without the base unless it is one of them."""
        return self.models if self.donor is None else (BlendDonor(self.donor),)

    def faults(self) -> Iterator[Reason]:
        """Yield what is wrong with the members together."""
        method = METHODS[self.method]
        least, most = method.donors
        if self.donor is not None and self.models:
            yield "models", "use either from, for one model, or models"
        elif not self.donors:
            yield "", "it needs a donor (from: MODEL) or several (models: a list)"
        elif not least <= len(self.donors) <= (most or BLENDED_MAX):
            due = f"{least}" if least == most else f"{least} or more"
            beside = " besides the base" if method.needs_base else ""
            yield "models", f"{self.method} is for {due} {'model' if due == '1' else 'models'}{beside}"
        yield from _setting_faults(self.parameters, method, each=False)
        for number, donor in enumerate(self.models):
            for name, sentence in _setting_faults(donor.parameters, method, each=True):
                yield f"models[{number}].{name}", sentence
        for name, default in method.defaults.items():
            if default is None and name not in self.parameters:
                lacking = [number for number, donor in enumerate(self.donors) if name not in donor.parameters]
                if lacking:
                    at = f"models[{lacking[0]}].{name}" if self.models and PARAMETERS[name].is_each else name
                    yield at, f"{self.method} needs it"
        if self.experts:
            yield "experts", "single experts cannot be blended: blend the whole stack"


def renamed_blend(step: Blend, name_of: Callable[[str], str]) -> Blend:
    """Return a blend with `name_of` each name of a model and an adapter."""
    models = tuple(
        replace(item, model=name_of(item.model), adapter=item.adapter and name_of(item.adapter)) for item in step.models
    )
    return replace(step, donor=step.donor and name_of(step.donor), models=models)


def settings_at(step: Blend, place: Place, depth: float) -> tuple[dict[str, Number | list[float]], list[str]]:
    """Return the parameters of a blend for an organ, and the names of those that have no value there.

    `depth` is 0 for the first block and 1 for the last. Parameters of the models are lists, in the order of the models.
    A value beside the method counts for all models that have none of their own.
    """
    settings: dict[str, Number | list[float]] = {}
    missing = []
    for name, default in METHODS[step.method].defaults.items():
        shared = step.parameters.get(name, default)
        each = [donor.parameters.get(name, shared) for donor in step.donors] if PARAMETERS[name].is_each else [shared]
        values = [None if setting is None else setting_at(setting, place, depth) for setting in each]
        if None in values:
            missing.append(name)
        kind = PARAMETERS[name].kind
        numbers = [kind(value) for value in values if value is not None]
        if PARAMETERS[name].is_each or numbers:
            settings[name] = numbers if PARAMETERS[name].is_each else numbers[0]
    return settings, missing
