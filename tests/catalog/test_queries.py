"""Tests of catalog queries: results and their order."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import blobs_by_digest, names_of_blob
from organs.registry.catalog.queries.model_lists import ranked_models, visible_models
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.catalog.queries.organs import organs_by_prefix, reachable_digests, reachable_organs
from organs.registry.catalog.tables import Blob, ModelRow, OrganRow, Placement
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import Ambiguous, BadDigest, NotFound
from organs.registry.names import ModelName, parse_model_name
from tests.catalog.test_register import BYTES, record, register_in
from tests.catalog.test_tables import NOON, sample_row


def add_organs(session: Session, *digests: str) -> None:
    for number, digest in enumerate(digests, 1):
        session.execute(insert(Blob), [sample_row("blobs") | {"id": number, "digest": digest}])
        session.execute(insert(OrganRow), [sample_row("organs") | {"id": number, "blob_id": number}])


def found_by(session: Session, prefix: str) -> list[str]:
    return [blob.digest for _, blob in organs_by_prefix(session, prefix)]


def add(session: Session, name: str, content: bytes = b"a file", **more: object) -> ModelRow:
    """Register a model of one organ, in a file with this content."""
    return register_in(session, record(name, digest=digest_of(content), **more), keep_name=True).model


def set_state(session: Session, model: ModelRow, state: str) -> None:
    model.state = state
    session.flush()


def names(models: Iterable[ModelRow]) -> list[str]:
    return [model.name for model in models]


@pytest.mark.parametrize("last", ["0", "9", "a", "f"])
def test_an_organ_is_found_by_a_prefix_of_its_digest(last: str, session: Session) -> None:
    digest = f"1234567{last}" + "ab" * 28
    add_organs(session, digest, *("1234567" + other + "ab" * 28 for other in "08af9" if other != last))
    for prefix in (digest[:8], f"sha256:{digest[:8].upper()}", digest):
        assert found_by(session, prefix) == [digest]


def test_a_prefix_of_two_digests_is_ambiguous_and_names_both(session: Session) -> None:
    first, second = "12345678" + "a" * 56, "12345678" + "b" * 56
    with pytest.raises(NotFound, match="12345678"):
        found_by(session, "12345678")
    add_organs(session, first, second)
    with pytest.raises(Ambiguous, match=f"2 digests begin with 12345678: {first[:16]}…, {second[:16]}…"):
        found_by(session, "12345678")
    assert found_by(session, "12345678b") == [second]


@pytest.mark.parametrize(
    "prefix", ["", "1234567", "g2345678", "12345678" * 9, "1234567%", "１２３４５６７８", "x' OR 1"]
)
def test_an_invalid_prefix_of_a_digest_is_refused(prefix: str, session: Session) -> None:
    with pytest.raises(BadDigest):
        found_by(session, prefix)


def test_a_name_without_a_version_means_the_newest(session: Session) -> None:
    for number in range(3):
        add(session, "a", b"%d" % number)
    assert model_by_text(session, "a").version == 3
    assert model_by_text(session, "local/a@2").version == 2
    with pytest.raises(NotFound, match="local/a@4"):
        model_by_text(session, "a@4")


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("local", "b"), ("other", "a"), ("local", "A"), ("local", "a%"), ("local", "_"), ("local", "a' OR '1'='1")],
)
def test_an_unknown_name_is_not_found(namespace: str, name: str, session: Session) -> None:
    add(session, "a")
    with pytest.raises(NotFound):
        model_by_name(session, ModelName(namespace, name))


def test_models_are_listed_newest_first_and_by_id_at_equal_times(session: Session) -> None:
    for name in ("a", "b", "c"):
        add(session, name, name.encode())
    session.execute(update(ModelRow).where(ModelRow.name == "a").values(created_at=NOON.replace(year=9000)))
    assert names(visible_models(session)) == ["a", "c", "b"]
    assert len(visible_models(session, 2)) == 2
    session.execute(update(ModelRow).values(created_at=NOON))
    assert names(visible_models(session)) == ["c", "b", "a"]


def test_the_ranking_descends_by_theta_ends_with_models_without_theta_and_has_only_complete_models(
    session: Session,
) -> None:
    thetas = {"a": None, "b": 20.0, "c": 30.0, "d": 20.0, "adapter": 50.0, "vocabulary": 50.0, "part": 50.0}
    for name, theta in thetas.items():
        model = add(session, name, name.encode(), kind=name if name in ("adapter", "vocabulary") else "model")
        model.mean_theta, model.complete = theta, name != "part"
    session.flush()
    assert names(ranked_models(session)) == ["c", "b", "d", "a"]
    assert len(visible_models(session)) == len(thetas)


def test_only_organs_of_visible_and_yanked_models_are_reachable(session: Session) -> None:
    model, own, absent = add(session, "a"), digest_of(BYTES), Digest("12345678" * 8)
    assert reachable_digests(session, [own, absent]) == {own}
    session.execute(update(Placement).values(visible=False))
    for state, reachable in (("yanked", [own]), ("quarantined", []), ("removed", [])):
        set_state(session, model, state)
        assert reachable_digests(session, [own, absent]) == set(reachable), "who knows a digest gets what was yanked"
        assert [organ.digest for organ in reachable_organs(session, [own, absent], 9)] == reachable
    assert own in blobs_by_digest(session, [own]), "the bytes are there; they are only not spoken of"


def test_a_blob_lists_the_models_and_tensors_that_need_it(session: Session) -> None:
    for name in ("a", "b"):
        add(session, name)
    (row,) = blobs_by_digest(session, [digest_of(BYTES)]).values()
    tensors = names_of_blob(session, row.id)[:2]
    assert tensors == ["local/a@1: output_norm.weight", "local/b@1: output_norm.weight"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("local/zoo-A", "; did you mean local/Zoo-A?"),
        ("zoo_a", "; did you mean local/Zoo-A?"),
        ("zoo", "; did you mean local/Zoo-A?"),
        ("zo", ""),
        ("other/thing", ""),
        ("local/Foo-B", ""),
        ("acme/zoo-a", "; did you mean local/Zoo-A?"),
        ("Zoo-A.Q4_0", "; did you mean local/Zoo-A.Q4_1-Q4_0?"),
        ("local/Zoo-hiddem", ""),
    ],
)
def test_a_misspelt_name_gets_a_suggestion_but_none_of_a_hidden_model(typed: str, meant: str, session: Session) -> None:
    for own in ("Zoo-A", "Zoo-A.Q4_1", "Zoo-A.Q4_1-Q4_0"):
        add(session, own)
    set_state(session, add(session, "Zoo-hidden", b"hidden"), "quarantined")
    name = parse_model_name(typed)
    with pytest.raises(NotFound) as caught:
        model_by_name(session, name)
    assert str(caught.value) == f"no model is registered as {name}{meant}"
