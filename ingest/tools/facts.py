"""What a tool knows about a model beside its bytes: texts, a license, and a name for bytes that had only a digest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy.orm import Session

from organs.ingest.sources import GGUF_SUFFIX, ModelSource
from organs.registry.catalog.queries.accounts import contributor_name
from organs.registry.catalog.queries.model_contents import digests_by_stamp, has_damaged_blobs, runtime_texts
from organs.registry.catalog.queries.model_names import find_model, free_names, visible_model_with_digest
from organs.registry.catalog.records import Edits, ModelRecord
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.model_changes import (
    add_other_names,
    edit_model,
    is_stored_text,
    record_texts,
    rename_model,
)
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import RUNTIME_TEXTS_MAX
from organs.registry.compose.licenses import AND, terms_of
from organs.registry.digest import digest_of, model_digest
from organs.registry.entities.model import RuntimeText
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.errors import BadSource
from organs.registry.input_files import stamp_text
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName, is_digest_name, parse_model_name

LICENSE_BEGIN = 3000
"""The characters at the beginning of a license that say which one it is."""
SHORT_LICENSE_MAX = 2500
"""The most characters of a text that is the MIT license and nothing else."""
REFERENCE_WORDS_MAX, REFERENCE_DIGITS = 48, 8
"""The most characters of the first line, and the digits of the SHA-256, in the reference to an unknown license."""
_LICENSES = {
    "apache-2.0": re.compile(r"^\W*apache license\W+version 2\.0, january 2004\b"),
    "mit": re.compile(r"^.{0,300}?permission is hereby granted, free of charge, to any person obtaining a copy"),
    "llama2": re.compile(r"^\W*llama 2 community license agreement\b"),
    "llama3": re.compile(r"^\W*meta llama 3 community license agreement\b"),
    "llama3.1": re.compile(r"^\W*llama 3\.1 community license agreement\b"),
    "llama3.2": re.compile(r"^\W*llama 3\.2 community license agreement\b"),
    "llama3.3": re.compile(r"^\W*llama 3\.3 community license agreement\b"),
    "gemma": re.compile(r"^\W*gemma terms of use\b"),
}
"""How texts of licenses begin, in lower case and with single spaces, by the names that headers of models use."""


def license_of(texts: Iterable[RuntimeText]) -> str | None:
    """Return the license that `texts` are; None if none of them is a license.

    Of several known licenses all apply: `apache-2.0 AND mit`. If none is known, a reference stands for the first text,
    with its first words and the beginning of its SHA-256: `LicenseRef-Research-license-0a1b2c3d`.
    """
    licenses = [text.text.strip() for text in texts if text.kind == "license" and text.text.strip()]
    known = dict.fromkeys(name for text in licenses if (name := _known_license(text)) is not None)
    if known or not licenses:
        return AND.join(known) or None
    words = re.findall(r"[A-Za-z0-9.]+", licenses[0].splitlines()[0])
    begin = "-".join(words)[:REFERENCE_WORDS_MAX].strip(".-")
    return "-".join(
        filter(None, ("LicenseRef", begin, digest_of(licenses[0].encode("utf-8", "replace"))[:REFERENCE_DIGITS]))
    )


def _known_license(text: str) -> str | None:
    if len(text) <= LICENSE_MAX and all(terms_of(part) is not None for part in text.split(AND)):
        return text  # a name, or several: what an image has for a model without the text of its license
    begin = " ".join(text[:LICENSE_BEGIN].lower().split())
    name = next((name for name, pattern in _LICENSES.items() if pattern.match(begin)), None)
    return None if name == "mit" and len(text) > SHORT_LICENSE_MAX else name


def stamp_of(path: Path) -> str | None:
    """Return the stamp of the file at `path`; None if it cannot be read."""
    try:
        return stamp_text(os.stat(path))
    except (OSError, ValueError):
        return None


def known_model(session: Session, source: ModelSource) -> ModelRow | None:
    """Return the registered model of `source`, whose files were read before and are unchanged; else None.

    A model with damaged blobs is read again, which repairs it.
    """
    stamps = [stamp for path in source.paths if (stamp := stamp_of(path)) is not None]
    digests = digests_by_stamp(session, stamps)
    if len(stamps) < len(source.paths) or any(stamp not in digests for stamp in stamps):
        return None
    model = visible_model_with_digest(session, model_digest([digests[stamp] for stamp in stamps]), None)
    return None if model is None or has_damaged_blobs(session, model.id) else model


def check_stated(source: ModelSource, record: ModelRecord) -> ModelRecord:
    """Return `record` with the name of the model for a file whose name is a digest.

    Raises BadSource if a file has another SHA-256 than its tool states.
    """
    stated = {path.name: digest for path, digest in zip(source.paths, source.digests, strict=False)}
    for file in record.files:
        if stated.get(file.name, file.sha256) != file.sha256:
            raise BadSource(
                f"{source.tool} {file.name}: its SHA-256 is {file.sha256}, not the one in its name; it is damaged, or "
                "was changed"
            )
    if not source.tool or len(record.files) != 1 or not is_digest_name(ModelName("", record.files[0].name)):
        return record
    return replace(record, files=(replace(record.files[0], name=f"{source.name.name}{GGUF_SUFFIX}"),))


def add_facts(registry: LocalRegistry, source: ModelSource, name: str) -> str:
    """Give the registered model `name` the texts, the license and the names that `source` has; return its name.

    A license that is missing, and a name that is a digest, are only changed for a model that this machine's user
    registered. The other names lead to the model from now on. Nothing is written if there is nothing to add.
    """
    names = (source.name, *source.other_names)
    with registry.catalog.reading() as session:
        model = find_model(session, parse_model_name(name))
        if model is None or not _has_more(session, model, source, names):
            return name
    with registry.catalog.writing() as session:  # the only writer: what is free now stays free
        model = find_model(session, parse_model_name(name))
        if model is None or model.state != "visible":
            return name
        if _is_own(session, model):
            record_texts(session, model, source.texts)
            license = license_of(source.texts)
            if model.license is None and license is not None:
                edit_model(session, model, Edits(license=license), LOCAL)
            if better := _better_name(session, model, names):
                rename_model(session, model, better, LOCAL)
        add_other_names(session, model, names)
        return model.full_name


def leads_to(registry: LocalRegistry, name: ModelName, full_name: str) -> bool:
    """Return whether `name` is another name of the registered model `full_name`."""
    with registry.catalog.reading() as session:
        model = find_model(session, name)
        is_own = model is not None and (model.namespace, model.name) == (name.namespace, name.name)
        return model is not None and model.full_name == full_name and not is_own


def _has_more(session: Session, model: ModelRow, source: ModelSource, names: Sequence[ModelName]) -> bool:
    if free_names(session, model, names):
        return True
    if not _is_own(session, model):
        return False
    stored = runtime_texts(session, [model.id], private=True)[model.id]
    has_texts = len(stored) < RUNTIME_TEXTS_MAX and any(
        not any(is_stored_text(text.kind, text.text, row.kind, row.text) for row in stored) for text in source.texts
    )
    has_license = model.license is None and license_of(source.texts) is not None
    return has_texts or has_license or _better_name(session, model, names) is not None


def _is_own(session: Session, model: ModelRow) -> bool:
    return contributor_name(session, model.contributor_id) == LOCAL


def _better_name(session: Session, model: ModelRow, names: Iterable[ModelName]) -> ModelName | None:
    """Return the first of `names` that can replace the name of `model`, a digest; None if its name is not a digest."""
    if not is_digest_name(ModelName(model.namespace, model.name)):
        return None
    for name in names:
        led_to = find_model(session, name)
        if not is_digest_name(name) and (led_to is None or led_to.id == model.id):
            return name
    return None
