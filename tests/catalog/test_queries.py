"""Tests of catalog queries: results and their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from organs.registry.catalog.queries.blobs import blobs_by_digest, names_of_blob
from organs.registry.catalog.queries.model_contents import ingest_of
from organs.registry.catalog.queries.model_lists import count_models, ranked_models, visible_models
from organs.registry.catalog.queries.model_names import model_by_name, visible_model_with_digest
from organs.registry.catalog.queries.organs import organs_by_prefix, reachable_digests, reachable_organs
from organs.registry.catalog.tables import Blob, ModelRow, OrganRow, Placement
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import Ambiguous, BadDigest, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName, parse_model_name
from tests.catalog.test_tables import NOON, sample_row
from tests.gguf_files import file_bytes, text
from tests.related_models import ingest_bytes
from tests.small_models import small_model, weight_tensor


def add_organs(registry: LocalRegistry, *digests: str, **more: Any) -> None:
    with registry.catalog.writing() as session:
        for number, digest in enumerate(digests, 1):
            session.execute(insert(Blob), [sample_row("blobs") | {"id": number, "digest": digest}])
            session.execute(
                insert(OrganRow),
                [sample_row("organs") | {"id": number, "blob_id": number} | more],
            )


def found_by(registry: LocalRegistry, prefix: str) -> list[str]:
    with registry.catalog.reading() as session:
        return [blob.digest for _, blob in organs_by_prefix(session, prefix)]


def set_state(registry: LocalRegistry, name: str, state: str) -> None:
    parsed = parse_model_name(name)
    with registry.catalog.writing() as session:
        session.execute(
            update(ModelRow).where(ModelRow.name == parsed.name, ModelRow.version == parsed.version).values(state=state)
        )


@pytest.mark.parametrize("last", ["0", "9", "a", "f"])
def test_an_organ_is_found_by_a_prefix_of_its_digest(last: str, registry: LocalRegistry) -> None:
    digest = f"1234567{last}" + "ab" * 28
    others = ["1234567" + other + "ab" * 28 for other in "08af9" if other != last]
    add_organs(registry, digest, *others)
    assert found_by(registry, digest[:8]) == [digest]
    assert found_by(registry, f"sha256:{digest[:8].upper()}") == [digest]
    assert found_by(registry, digest) == [digest]


def test_a_prefix_of_two_digests_is_ambiguous_and_names_both(registry: LocalRegistry) -> None:
    first, second = "12345678" + "a" * 56, "12345678" + "b" * 56
    add_organs(registry, first, second)
    with pytest.raises(Ambiguous, match=f"2 digests begin with 12345678: {first[:16]}…, {second[:16]}…"):
        found_by(registry, "12345678")
    assert found_by(registry, "12345678b") == [second]


def test_an_unknown_digest_is_not_found(registry: LocalRegistry) -> None:
    with pytest.raises(NotFound, match="12345678"):
        found_by(registry, "12345678")


@pytest.mark.parametrize(
    "prefix", ["", "1234567", "g2345678", "12345678" * 9, "1234567%", "１２３４５６７８", "x' OR 1"]
)
def test_an_invalid_prefix_of_a_digest_is_refused(prefix: str, registry: LocalRegistry) -> None:
    with pytest.raises(BadDigest):
        found_by(registry, prefix)


def test_the_same_bytes_in_two_shapes_are_two_organs_of_one_digest(registry: LocalRegistry) -> None:
    digest = "12345678" * 8
    add_organs(registry, digest)
    with registry.catalog.writing() as session:
        session.execute(insert(OrganRow), [sample_row("organs") | {"id": 2, "shape": "2x2"}])
    assert found_by(registry, digest[:8]) == [digest, digest]


def test_a_name_without_a_version_means_the_newest(registry: LocalRegistry, tmp_path: Path) -> None:
    for seed in range(3):
        ingest_bytes(registry, tmp_path, "a", small_model(seed=seed))
    with registry.catalog.reading() as session:
        assert model_by_name(session, parse_model_name("a")).version == 3
        assert model_by_name(session, parse_model_name("local/a@2")).version == 2
        with pytest.raises(NotFound, match="local/a@4"):
            model_by_name(session, parse_model_name("a@4"))


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("local", "b"), ("other", "a"), ("local", "A"), ("local", "a%"), ("local", "_"), ("local", "a' OR '1'='1")],
)
def test_an_unknown_name_is_not_found(namespace: str, name: str, registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "a", small_model())
    with registry.catalog.reading() as session, pytest.raises(NotFound):
        model_by_name(session, ModelName(namespace, name))


def test_a_yanked_model_is_found_by_its_name_but_not_listed(registry: LocalRegistry, tmp_path: Path) -> None:
    set_state(registry, ingest_bytes(registry, tmp_path, "a", small_model()), "yanked")
    with registry.catalog.reading() as session:
        assert model_by_name(session, parse_model_name("a")).state == "yanked"
        assert list(visible_models(session)) == []
        assert count_models(session) == 0


@pytest.mark.parametrize("state", ["quarantined", "removed"])
def test_a_model_that_is_not_shown_counts_as_absent(state: str, registry: LocalRegistry, tmp_path: Path) -> None:
    data = small_model()
    name = ingest_bytes(registry, tmp_path, "a", data)
    with registry.catalog.reading() as session:
        model = model_by_name(session, parse_model_name(name))
        assert visible_model_with_digest(session, digest_of(data), None) == model
        assert visible_model_with_digest(session, digest_of(data), parse_model_name("b")) is None
        assert visible_model_with_digest(session, digest_of(b"other"), None) is None
    set_state(registry, name, state)
    with registry.catalog.reading() as session:
        with pytest.raises(NotFound):
            model_by_name(session, parse_model_name("a"))
        assert visible_model_with_digest(session, digest_of(data), None) is None
        assert list(ranked_models(session)) == []


def test_models_are_listed_newest_first_and_by_id_at_equal_times(registry: LocalRegistry, tmp_path: Path) -> None:
    names = [ingest_bytes(registry, tmp_path, name, small_model(name)) for name in ("a", "b", "c")]
    with registry.catalog.reading() as session:
        assert [f"local/{model.name}@1" for model in visible_models(session)] == names[::-1]
        assert len(visible_models(session, 2)) == 2
    with registry.catalog.writing() as session:
        session.execute(update(ModelRow).values(created_at=NOON))
    with registry.catalog.reading() as session:
        assert [model.id for model in visible_models(session)] == [3, 2, 1]


def test_the_ranking_descends_by_theta_and_ends_with_models_without_theta(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for name in ("a", "b", "c", "d"):
        ingest_bytes(registry, tmp_path, name, small_model(name))
    with registry.catalog.writing() as session:
        for name, theta in (("a", None), ("b", 20.0), ("c", 30.0), ("d", 20.0)):
            session.execute(update(ModelRow).where(ModelRow.name == name).values(mean_theta=theta))
    with registry.catalog.reading() as session:
        assert [model.name for model in ranked_models(session)] == ["c", "b", "d", "a"]


def test_only_complete_models_are_ranked(registry: LocalRegistry, tmp_path: Path) -> None:
    adapter = file_bytes([text("general.type", "adapter")], [weight_tensor("blk.0.attn_q.weight.lora_a", (64, 4))])
    ingest_bytes(registry, tmp_path, "adapter", adapter)
    ingest_bytes(registry, tmp_path, "vocabulary", file_bytes([text("general.name", "Words")]))
    ingest_bytes(registry, tmp_path, "whole", small_model())
    with registry.catalog.writing() as session:
        session.execute(update(ModelRow).where(ModelRow.name == "whole").values(complete=False))
    with registry.catalog.reading() as session:
        assert list(ranked_models(session)) == []
        assert len(visible_models(session)) == 3


def test_only_organs_of_visible_and_yanked_models_are_reachable(registry: LocalRegistry, tmp_path: Path) -> None:
    spec, data = weight_tensor("output_norm.weight", (64,))
    own = digest_of(data)
    name = ingest_bytes(registry, tmp_path, "a", file_bytes([], [(spec, data)]))
    absent = Digest("12345678" * 8)
    with registry.catalog.reading() as session:
        assert reachable_digests(session, [own, absent]) == {own}
    with registry.catalog.writing() as session:
        session.execute(update(Placement).values(visible=False))
    for state, reachable in (("yanked", [own]), ("quarantined", []), ("removed", [])):
        set_state(registry, name, state)
        with registry.catalog.reading() as session:
            assert reachable_digests(session, [own, absent]) == set(reachable), (
                "who knows a digest gets what was yanked"
            )
            assert [organ.digest for organ in reachable_organs(session, [own, absent], 9)] == reachable
    with registry.catalog.reading() as session:
        assert own in blobs_by_digest(session, [own]), "the bytes are there; they are only not spoken of"


def test_a_blob_lists_the_models_and_tensors_that_need_it(registry: LocalRegistry, tmp_path: Path) -> None:
    spec, data = weight_tensor("output_norm.weight", (64,))
    ingest_bytes(registry, tmp_path, "a", file_bytes([], [(spec, data)]))
    ingest_bytes(registry, tmp_path, "b", file_bytes([text("general.name", "B")], [(spec, data)]))
    with registry.catalog.reading() as session:
        (row,) = blobs_by_digest(session, [digest_of(data)]).values()
        assert names_of_blob(session, row.id) == ["local/a@1: output_norm.weight", "local/b@1: output_norm.weight"]


def test_many_digests_are_queried_in_several_statements(registry: LocalRegistry) -> None:
    digests = [digest_of(b"%d" % number) for number in range(1_300)]
    with registry.catalog.writing() as session:
        session.execute(
            insert(Blob),
            [sample_row("blobs") | {"id": None, "digest": digest} for digest in digests[::2]],
        )
    with registry.catalog.reading() as session:
        assert set(blobs_by_digest(session, digests)) == set(digests[::2])


def test_the_ingest_of_a_model_is_the_ingest_that_registered_it(registry: LocalRegistry, tmp_path: Path) -> None:
    data = small_model()
    ingest_bytes(registry, tmp_path, "a", data)
    ingest_bytes(registry, tmp_path, "again", data)
    with registry.catalog.reading() as session:
        ingest = ingest_of(session, 1)
        assert ingest is not None
        assert (ingest.id, ingest.state) == (1, "finished")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("local/zoo-A", "; did you mean local/Zoo-A?"),
        ("zoo_a", "; did you mean local/Zoo-A?"),
        ("other/thing", ""),
        ("local/Foo-B", ""),
        ("acme/zoo-a", "; did you mean local/Zoo-A?"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(typed: str, meant: str, registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "Zoo-A", small_model())
    ingest_bytes(registry, tmp_path, "Zoo-hidden", small_model(seed=1))
    set_state(registry, "local/Zoo-hidden@1", "quarantined")
    name = parse_model_name(typed)
    with pytest.raises(NotFound) as caught, registry.catalog.reading() as session:
        model_by_name(session, name)
    assert str(caught.value) == f"no model is registered as {name}{meant}"
    with pytest.raises(NotFound) as caught, registry.catalog.reading() as session:
        model_by_name(session, parse_model_name("local/Zoo-hiddem"))
    assert "hidden" not in str(caught.value)
