"""Tests of pushes to a real server: the published model equals the file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import delete

from organs.ingest.contributions import push as submitting
from organs.ingest.contributions.push import (
    PushOptions,
    PushReport,
    push,
    push_chimera,
)
from organs.ingest.contributions.sending import Memory, cut, distinct, loads
from organs.ingest.dissect import dissect
from organs.ingest.sources import ModelSource, find_sources
from organs.registry.catalog.queries.accounts import PIECE_ROW_BYTES
from organs.registry.catalog.queries.blobs import DEPTH_MAX
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import set_quota
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.tables import CardImageRow
from organs.registry.client.connection import Connection
from organs.registry.client.remote import RemoteRegistry
from organs.registry.endpoints import models
from organs.registry.errors import BadInput, BadReply, Conflict, NotAllowed, OverQuota
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.card_images import CARD, NAME, POINTS
from tests.client.served_registry import ServedRegistry, serve_registry
from tests.ingest.push_cases import CHUNK_BYTES, RecordedProgress, large_model, write_model_file
from tests.registry_templates import RegistryTemplates
from tests.related_models import blob_forms, family_files, model_file, related_tensors
from tests.small_models import (
    EXPERTS,
    assemble_model,
    expert_model,
    expert_stack,
    row_counts,
)
from tests.web.accounts import new_token
from tests.web.conftest import add_family


@pytest.fixture
def here(templates: RegistryTemplates, tmp_path: Path) -> Iterator[LocalRegistry]:
    with templates.open_copy(add_family, tmp_path / "here") as registry:
        yield registry


@pytest.fixture
def there(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedRegistry]:
    monkeypatch.setattr(submitting, "POLL_MAX_SECONDS", 0.2)
    with serve_registry(registry) as served:
        yield served


def pushed(
    there: ServedRegistry, path: Path, token: str, name: str | None = None, base: str | None = None
) -> PushReport:
    (source,) = find_sources([str(path)], "push")
    options = PushOptions(name, {"base": base} if base else {}, chunk_bytes=CHUNK_BYTES)
    return push(Connection(there.url, token), source, options, Memory(path.parent / "cache"), RecordedProgress())


def pushed_as_recipe(
    there: ServedRegistry, here: LocalRegistry, token: str, model: str, **options: Any
) -> PushReport | str:
    """Push a chimera of `here` as its recipe; return the report, or why it must be sent as a file."""
    with RemoteRegistry(there.url, token) as remote:
        source = ModelSource((), parse_model_name(model))
        return push_chimera(remote, here, source, PushOptions(**options), RecordedProgress())


def test_the_images_of_a_card_are_sent_when_the_model_is_registered_and_again_if_they_lack(
    there: ServedRegistry, registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = new_token(registry, "ann")
    first, second = (model_file("A", related_tensors(correlation=alike)) for alike in (1.0, 0.9))
    path = write_model_file(tmp_path, first, "a.gguf")
    connection, memory = Connection(there.url, token), Memory(tmp_path / "cache")

    def send(**options: Any) -> PushReport:
        stated = {"description": f"{CARD}![b](b.png) ![c](c.png)", "license": "mit", "base": "acme/loom"}
        stated |= options.pop("stated", {})
        images = {NAME: POINTS, "b.png": b"<svg/>"}
        options = {"images": images, "lacking_images": ("c.png: a link",), **options}
        (source,) = find_sources([str(path)], "push")
        return push(connection, source, PushOptions(metadata=stated, **options), memory, RecordedProgress())

    def names() -> list[str]:
        return [image.name for image in models.model(connection, "ann", "a").images]

    report = send()
    assert (report.state, names()) == ("published", [NAME])
    lacking = [
        "an image of its card is not shown: c.png: a link",
        "an image of its card is not shown: b.png is no PNG, JPEG, WebP or GIF image",
    ]
    assert list(report.notes) == lacking
    with registry.catalog.writing() as session:
        session.execute(delete(CardImageRow))
    assert (send(dry_run=True).state, names()) == ("there", [])
    with monkeypatch.context() as patched:
        refused = Mock(side_effect=BadReply("it is no JSON"))
        patched.setattr(submitting.models, "send_image", refused)
        lost = "ann/a@1 is registered, but images of its card were not sent: it is no JSON. Push it again for them"
        assert (send().notes, refused.call_count) == ((lacking[0], lost), 1)
    assert (list(send().notes), names()) == (lacking, [NAME])
    *notes, not_changed = send(stated={"tags": ["yarn"]}).notes
    assert (notes, not_changed.partition(";")[0]) == (lacking, "the registry already has this model")
    write_model_file(tmp_path, second, "a.gguf")
    assert send(wait=False).notes == (submitting.IMAGES_LATER,)


@pytest.mark.long
def test_pushed_relatives_are_stored_by_their_differences_and_read_back_identical(
    there: ServedRegistry, tmp_path: Path
) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    sources = {name: write_model_file(tmp_path, data, f"{name}.gguf") for name, data in family_files().items()}
    for path in sources.values():
        assert pushed(there, path, token).state == "published"
    forms = blob_forms(there.registry)
    assert {kind for kind, _, _ in forms} == {"alone", "delta", "derive"}
    assert max(depth for _, depth, _ in forms) == DEPTH_MAX
    for name, path in sources.items():
        (back,) = assemble_model(there.registry, f"me/{name}", tmp_path / "back")
        assert back.read_bytes() == path.read_bytes()
        again = pushed(there, path, token)
        assert (again.state, again.bytes_sent) == ("there", 0)


def test_a_push_is_refused_beforehand_exactly_when_the_registry_would_refuse_it(
    there: ServedRegistry, tmp_path: Path
) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    path = write_model_file(tmp_path, large_model())
    with FileSource(path) as source:
        pieces = distinct(cut([dissect(source)], Memory(None), lambda _size: None))
        packed = sum(len(load.pieces) for load in loads(pieces.values()) if load.is_pack)
    needed = path.stat().st_size + PIECE_ROW_BYTES * packed
    for quota_bytes in (needed - 1, needed):
        with there.registry.catalog.writing() as session:
            set_quota(session, "me", quota_bytes)
        if quota_bytes < needed:
            with pytest.raises(OverQuota, match="1 bytes more than your quota"):
                pushed(there, path, token)
            assert row_counts(there.registry)["uploads"] == 0
        else:
            assert pushed(there, path, token).state == "published"


@pytest.mark.long
def test_of_a_stack_only_the_experts_that_the_server_lacks_are_sent(there: ServedRegistry, tmp_path: Path) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    pushed(there, write_model_file(tmp_path, expert_model(), "Mixture.gguf"), token)
    path = write_model_file(tmp_path, expert_model("Edited", changed={2: 50, 5: 51}), "Edited.gguf")
    second = pushed(there, path, token)
    (stack,) = {len(expert_stack(f"blk.0.ffn_{part}_exps.weight")[1]) for part in ("gate", "up")}
    changed = 4 * 2 * stack // EXPERTS
    assert changed <= second.bytes_sent < changed + 4096
    (back,) = assemble_model(there.registry, "me/Edited", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()
    found = there.registry.search("expert:5 model:me/Edited")
    assert len(found) == 4
    assert all(organ.theta is not None for organ in found)


@pytest.mark.long
def test_a_chimera_is_composed_there_from_its_parents_if_they_are_there(
    there: ServedRegistry, here: LocalRegistry, tmp_path: Path
) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    base, tuned = (assemble_model(here, name, tmp_path / name)[0] for name in ("base", "tuned"))
    made = here.compose("base").graft("tuned", type="organ").named("acme/mix").plan().register()
    assert made.model == "acme/mix@1"

    push_mix = partial(pushed_as_recipe, there, here, token, made.model)
    with pytest.raises(Conflict, match=r"made from local/base@1 and local/tuned@1, which .* does not have: push them "):
        push_mix()
    pushed(there, base, token, "theirs")
    with pytest.raises(Conflict, match=r"made from local/tuned@1, which .* does not have: push it first"):
        push_mix()
    pushed(there, tuned, token)
    dry = push_mix(dry_run=True)
    assert isinstance(dry, PushReport)
    assert (dry.name, dry.state, dry.model) == ("me/mix", "would compose", None)
    reports = [push_mix(), push_mix()]
    states = [(report.state, report.model) for report in reports if isinstance(report, PushReport)]
    assert states == [("composed", "me/mix@1"), ("there", "me/mix@1")]
    composed = there.registry.chimera(made.lock_id)
    assert [parent.model for parent in composed.parents] == ["me/theirs@1", "me/tuned@1"]
    with pytest.raises(NotAllowed):
        push_mix(name="someone/else")
    assert pushed_as_recipe(there, here, token, "local/base@1") == ""
    purified = here.compose("base").graft("tuned", type="organ").purify("fractal", slot="attn_q").named("acme/pure")
    lock = purified.plan().register().lock_id
    with pytest.raises(BadInput, match="license"):
        pushed_as_recipe(there, here, token, "acme/pure@1", metadata={"license": "not a license!!"})
    assert there.registry.models("pure").items == ()
    for title in ("Pure", "Purer"):
        stated = {"title": title, "license": "mit", "tags": ["clean"], "base": "me/tuned"}
        assert isinstance(pushed_as_recipe(there, here, token, "acme/pure@1", metadata=stated), PushReport)
        assert there.registry.chimera(lock).model == "me/pure@1"
        pure = there.registry.model("me/pure")
        assert (pure.title, pure.license, pure.tags) == (title, "mit", ("clean",))


@pytest.mark.long
def test_a_chimera_whose_recipe_can_mean_something_else_there_is_sent_as_a_file(
    there: ServedRegistry, here: LocalRegistry, tmp_path: Path
) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    for name in ("base", "tuned"):
        pushed(there, assemble_model(here, name, tmp_path / name)[0], token)

    reason = partial(pushed_as_recipe, there, here, token)
    queried = here.compose("base").graft(where="type:organ model:local/tuned", type="organ").named("acme/query").plan()
    assert reason(queried.register().model) == "its recipe has a query, which can find other tensors there"
    made = here.compose("base").graft("tuned", type="organ").named("acme/mix").plan().register()
    with there.registry.catalog.writing() as session:
        hide_model(session, model_by_name(session, parse_model_name("me/tuned")), "yanked", "It is wrong.", "me")
    assert "was yanked" in str(reason(made.model))
    with here.catalog.writing() as session:
        remove_model(session, model_by_name(session, parse_model_name("local/tuned")), "It is wrong.", "local")
    unknown = "one of its parents is not known here any more: local/tuned@1 was removed"
    assert str(reason(made.model)).startswith(unknown)
