"""Cards of models: Markdown files, with a front matter as on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.orm import Session

from organs.ingest.card_images import change_with_images, checked_images, read_images
from organs.ingest.contributions.manifest import read_edits
from organs.ingest.sources import ModelSource
from organs.registry.catalog.queries.accounts import contributor_name
from organs.registry.catalog.queries.model_lists import declared_base
from organs.registry.catalog.queries.model_names import find_model
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.model_changes import edit_model
from organs.registry.catalog.tables import ModelRow
from organs.registry.documents import BadDocument, Limits, parse_yaml
from organs.registry.entities.published import DESCRIPTION_MAX, TAG_MAX, TAGS_MAX
from organs.registry.errors import BadSource
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name, split_quantisation

CARD_MAX_BYTES = 4 * DESCRIPTION_MAX
"""The most bytes of a file with a card. Its text has at most DESCRIPTION_MAX characters."""
README = "readme.md"
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FRONT_LIMITS = Limits(size_bytes=64 * 1024, values=2000, depth=8)
_UNFILLED = "[More Information Needed]"
_UNFILLED_MAX = 5
"""A card with more of these is a form that nobody filled in."""


@dataclass(frozen=True, slots=True)
class Card:
    """The card of a model in a file: what it states, and the folder of the images that it shows."""

    edits: Edits
    folder: Path

    def images(self) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """Return the images beside the card by their names, and why others lack (`ingest.card_images`)."""
        return read_images(self.folder, self.edits.description or "")


def read_card(path: Path) -> Card:
    """Return the text of the card in the file `path`, and the license, tags and base that its front matter states.


    Values of the front matter that a model cannot have are left out. Raises BadSource for a file that is not text, or
    too long.
    """
    try:
        if not path.is_file():
            raise BadSource(f"{path}: not a file")
        with path.open("rb") as file:
            data = file.read(CARD_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise BadSource(f"{path}: {error.strerror}") from error
    except UnicodeError:
        raise BadSource(f"{path}: a card is a text in UTF-8") from None
    text = text.replace("\r\n", "\n")
    front = _FRONT.match(text)
    body = text[front.end() :] if front else text
    if len(data) > CARD_MAX_BYTES or len(body.strip()) > DESCRIPTION_MAX:
        raise BadSource(f"{path}: a card has at most {DESCRIPTION_MAX:,} characters")
    edits, wrong = read_edits({"description": body})
    if wrong:
        raise BadSource(f"{path}: {wrong[0][1]}")
    return Card(_with_front(edits, front[1]) if front else edits, path.parent)


def with_cards(sources: Iterable[ModelSource], folders: Iterable[Path]) -> list[ModelSource]:
    """Return `sources` with the README.md beside those in `folders`, if all models beside it are sizes of one."""
    sources, roots = list(sources), [folder.resolve() for folder in folders]
    stems: dict[Path, set[str]] = {}
    for source in sources:
        if source.paths and not source.tool:
            stems.setdefault(_folder_of(source), set()).add(split_quantisation(source.name.name)[0])
    cards = {folder: _readme_of(folder) for folder, names in stems.items() if len(names) == 1}
    return [
        replace(source, card=cards.get(_folder_of(source)))
        if source.paths and not source.tool and any(_folder_of(source).is_relative_to(root) for root in roots)
        else source
        for source in sources
    ]


def add_card(registry: LocalRegistry, name: str, card: Card, *, replaces: bool) -> tuple[str, ...] | None:
    """Give the registered model `name` a card, and what it lacks of license, tags and base.

    Return why images of it lack, or None if it is not the card of the model and nothing changed. A description that the
    model has stays, unless `replaces`. Models of other contributors do not change.
    """
    found, lacking = card.images()
    images, refused = checked_images(found, required=registry.settings.requires_sandbox)
    is_its_card = has_changed = False

    def change(session: Session) -> ModelRow | None:
        nonlocal is_its_card, has_changed
        is_its_card = has_changed = False  # it may be called again
        model = find_model(session, parse_model_name(name))
        if model is None or model.state != "visible" or contributor_name(session, model.contributor_id) != LOCAL:
            return None
        stated = card.edits
        edits = Edits(
            description=stated.description if replaces or not model.description else None,
            license=stated.license if model.license is None else None,
            tags=stated.tags if not model.tags else None,
            base=stated.base if declared_base(session, model) is None else None,
        )
        has_changed = bool(edit_model(session, model, edits, LOCAL))
        is_its_card = bool(stated.description) and model.description == stated.description
        return model if is_its_card else None  # else the images are those of another card

    change_with_images(registry, change, images, LOCAL)
    if is_its_card:
        return (*lacking, *refused)
    return () if has_changed else None


def _folder_of(source: ModelSource) -> Path:
    first = source.paths[0].resolve()
    return first if first.is_dir() else first.parent


def _readme_of(folder: Path) -> Path | None:
    """Return the one README.md in `folder` if it can be a card. A link is none: it could lead to a private file."""
    try:
        found = [path for path in folder.iterdir() if path.name.lower() == README]
        found = [path for path in found if path.is_file() and not path.is_symlink()]
        if len(found) != 1 or not (text := read_card(found[0]).edits.description):
            return None
    except (OSError, BadSource):
        return None
    return None if text.count(_UNFILLED) > _UNFILLED_MAX else found[0]


def _with_front(edits: Edits, front: str) -> Edits:
    """Return `edits` with the license, the tags and the base of a front matter, if they are valid."""
    try:
        values = parse_yaml(front, _FRONT_LIMITS)
    except BadDocument:
        return edits
    if not isinstance(values, dict):
        return edits
    tags, base = values.get("tags"), values.get("base_model")
    if isinstance(base, list):
        base = base[0] if len(base) == 1 else None
    if isinstance(tags, list):
        tags = [tag for tag in tags if isinstance(tag, str) and len(tag) <= TAG_MAX][:TAGS_MAX]
    for name, value, kind in (("license", values.get("license"), str), ("base", base, str), ("tags", tags, list)):
        if isinstance(value, kind) and value:
            read, wrong = read_edits({name: value})
            edits = edits if wrong else replace(edits, **{name: getattr(read, name)})
    return edits
