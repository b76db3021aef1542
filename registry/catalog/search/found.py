"""What a search gives, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from organs.registry import notebook
from organs.registry.amounts import count_text, share_text, size_text, theta_text
from organs.registry.digest import Digest

_ORGAN_COLUMNS = ("organ", "model", "tensor", "type", "dtype", "shape", "θ", "signal", "spectral", "size")
_MODEL_COLUMNS = ("model", "title", "architecture", "licence", "parameters", "tensors", "mean θ", "size")
_NUMBERS = ("parameters", "tensors", "θ", "mean θ", "signal", "spectral", "size", "alike")
TITLE_SHOWN = 40
"""Characters of a title, which may be as long as its writer liked."""


@dataclass(frozen=True, slots=True)
class FoundOrgan:
    """An organ at its place in a visible model. Measures are None where nothing was measured."""

    digest: Digest
    model: str
    """`namespace/name@version`."""
    name: str
    type: str
    tower: str
    block: int | None
    slot: str
    dtype: str
    shape: tuple[int, ...]
    """Row length first."""
    size_bytes: int
    theta: float | None
    """Degrees, 0 noise to 90 signal."""
    magnitude: float | None
    signal: float | None
    spectral_signal: float | None
    stable_rank: float | None
    architecture: str | None
    license: str | None
    likeness: float | None = None
    """For `like:` the correlation of the fingerprints, -1 to 1."""
    nonfinite: int | None = None
    """How many of its values are NaN or infinite; None where they were not counted."""

    def __repr__(self) -> str:
        return f"<{self.name} of {self.model}: {_shape(self)} {self.dtype}, θ {theta_text(self.theta)}>"


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of a search. Iterating gives its organs."""

    items: tuple[FoundOrgan, ...]
    next: str | None
    """What to give as `after` for the next page; None on the last."""
    notes: tuple[str, ...] = ()
    """What the asker should know: a name that nothing has, a comparison that was cut off."""

    def __iter__(self) -> Iterator[FoundOrgan]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"<{_how_many(self, 'organ')}>"

    def _repr_html_(self) -> str:
        return notebook.document(organs_html(self.items), *_below(self.notes, self.next))


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A visible model."""

    name: str
    """`namespace/name@version`."""
    title: str | None
    kind: str
    """model, adapter or vocabulary; partial when only some of its organs are here."""
    architecture: str | None
    license: str | None
    parameters: int
    tensors: int
    size_bytes: int
    mean_theta: float | None
    """Degrees, over its tensors."""
    mean_signal: float | None
    digest: Digest
    """Of its bytes."""
    created_at: datetime
    nonfinite_tensors: int | None = None
    """Tensors with values that are NaN or infinite; None where those of some tensor were not counted."""

    def __repr__(self) -> str:
        size, theta = size_text(self.size_bytes), theta_text(self.mean_theta)
        return f"<{self.name}: {self.kind}, {count_text(self.parameters)} parameters, {size}, mean θ {theta}>"


@dataclass(frozen=True, slots=True)
class ModelsPage:
    """One page of models. Iterating gives them."""

    items: tuple[FoundModel, ...]
    next: str | None
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[FoundModel]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"<{_how_many(self, 'model')}>"

    def _repr_html_(self) -> str:
        rows = [_model_row(model) for model in self.items]
        return notebook.document(notebook.table(_MODEL_COLUMNS, rows, _NUMBERS), *_below(self.notes, self.next))


@dataclass(frozen=True, slots=True)
class FacetCounts:
    """How the placements that a query finds are spread; each field's counts leave out that field's own filter."""

    total: int | None
    """How many the query finds; None when there are too many to count one by one."""
    fields: Mapping[str, Mapping[str, int]]
    """By field (type, slot, dtype, arch, license), value and count; the largest counts first."""
    theta: Mapping[int | None, int]
    """By the lower edge of a bin of 5 degrees; None counts what has no θ. The filter by θ is left out."""
    exact: bool
    """False where a bound lies inside a bin of θ and its share was estimated, or where a filter was not counted."""
    uncounted: tuple[str, ...] = ()
    """The filters that the counts leave out, for what they match would have to be counted one by one."""
    hurried: bool = False
    """Whether time ran out over that: the same question may be answered better another time."""


def organs_html(organs: Sequence[FoundOrgan]) -> str:
    """Organs as a table for notebooks; with a column for likeness where they were ranked by it."""
    alike = any(organ.likeness is not None for organ in organs)
    rows = [[*_organ_row(organ), *([share_text(organ.likeness)] if alike else [])] for organ in organs]
    return notebook.table([*_ORGAN_COLUMNS, *(["alike"] if alike else [])], rows, _NUMBERS)


def _organ_row(organ: FoundOrgan) -> tuple[str, ...]:
    return (
        *(organ.digest[:12], organ.model, organ.name, organ.type, organ.dtype, _shape(organ)),
        *(theta_text(organ.theta), share_text(organ.signal), share_text(organ.spectral_signal)),
        size_text(organ.size_bytes),
    )


def _model_row(model: FoundModel) -> tuple[notebook.Cell, ...]:
    return (
        *(model.name, model.title and model.title[:TITLE_SHOWN], model.architecture, model.license),
        *(count_text(model.parameters), model.tensors, theta_text(model.mean_theta), size_text(model.size_bytes)),
    )


def _shape(organ: FoundOrgan) -> str:
    return "×".join(map(str, organ.shape))


def _how_many(page: SearchPage | ModelsPage, what: str) -> str:
    count = len(page.items)
    notes = "".join(f"; {notebook.visible(note)}" for note in page.notes[:1])
    return f"{count} {what}{'' if count == 1 else 's'}{', more follow' if page.next else ''}{notes}"


def _below(notes: Sequence[str], following: str | None) -> Iterator[str]:
    yield from (notebook.paragraph(note) for note in notes)
    if following is not None:
        yield notebook.paragraph("more follow: give next as after")
