"""A registry elsewhere gives scripts the very values that the same registry gives as a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.assembly import place_file, plan_shards
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.model_changes import add_other_names
from organs.registry.client.remote import RemoteRegistry
from organs.registry.digest import digest_of
from organs.registry.errors import Ambiguous, BadDigest, BadName, BadQuery, NotFound, OrganError, SeveralModels
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.client.served_registry import serve_registry
from tests.small_models import ingest_file, small_model

QUERIES = ("", "type:organ sort:-theta", "block:1 theta>=10 -type:norm", "unique:organ", "model:local/base nobodyknows")


@pytest.mark.parametrize("query", QUERIES)
def test_a_search_finds_the_same_page_and_counts_the_same(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, query: str
) -> None:
    assert remote_registry.search(query) == local_registry.search(query)
    assert remote_registry.count(query) == local_registry.count(query)


def test_the_pages_of_a_search_continue_each_other(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry
) -> None:
    first = remote_registry.search("type:organ", limit=3)
    assert first == local_registry.search("type:organ", limit=3)
    assert remote_registry.search("type:organ", limit=3, after=first.next) == local_registry.search(
        "type:organ", limit=3, after=first.next
    )


def test_a_search_by_likeness_is_the_same(local_registry: LocalRegistry, remote_registry: RemoteRegistry) -> None:
    query = f"like:{local_registry.search('slot:ffn_up', limit=1).items[0].digest}"
    assert remote_registry.search(query) == local_registry.search(query)
    assert remote_registry.search(query).items[0].likeness is not None


@pytest.mark.parametrize("query", ["", "kind:chimera", "kind:model sort:-theta", "base"])
def test_models_are_listed_the_same(local_registry: LocalRegistry, remote_registry: RemoteRegistry, query: str) -> None:
    assert remote_registry.models(query) == local_registry.models(query)
    assert remote_registry.models(query, limit=1) == local_registry.models(query, limit=1)


@pytest.mark.parametrize("name", ["base", "local/tuned", "local/stranger@1", "local/first"])
def test_a_model_is_the_same_with_its_organs_its_relatives_and_its_recipe(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, name: str
) -> None:
    assert remote_registry.model(name) == local_registry.model(name)
    assert remote_registry.model(name).recipe_yaml == local_registry.model(name).recipe_yaml


def test_a_model_is_found_by_the_digest_of_its_file_or_of_its_lock(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry
) -> None:
    first = local_registry.model("first")
    assert remote_registry.model(f"sha256:{first.lock_id}") == first
    assert remote_registry.model(f"sha256:{local_registry.model('base').digest[:12]}") == local_registry.model("base")


def test_the_models_that_fit_a_base_are_the_same(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry
) -> None:
    found = local_registry.fitting("base")
    assert {one.model for one in found.items} >= {"local/tuned@1", "local/stranger@1"}
    assert remote_registry.fitting("base") == found
    assert remote_registry.fitting("base", limit=1) == local_registry.fitting("base", limit=1) != found


def test_two_names_of_one_lock_have_their_own_recipes(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry
) -> None:
    made = local_registry.compose("base").graft("tuned", type="organ", blocks=1).named("local/second").plan().register()
    assert remote_registry.model("second") == local_registry.model("second")
    assert remote_registry.model("second").lock_id == remote_registry.model("first").lock_id == made.lock_id


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        (lambda registry: registry.search("typ:organ"), BadQuery),
        (lambda registry: registry.search(limit=0), BadQuery),
        (lambda registry: registry.search(limit=1001), BadQuery),
        (lambda registry: registry.count("theta>=much"), BadQuery),
        (lambda registry: registry.models("nothing:here"), BadQuery),
        (lambda registry: registry.model("bse"), NotFound),
        (lambda registry: registry.model("a b"), BadName),
        (lambda registry: registry.model("sha256:0123456789"), NotFound),
        (lambda registry: registry.search("like:0123456789abcdef"), NotFound),
        (lambda registry: registry.assemble("nobody", "x.gguf"), NotFound),
        (lambda registry: registry.compose("nobody").plan(), NotFound),
        (lambda registry: registry.fitting("nobody"), NotFound),
        (lambda registry: registry.fitting("base", limit=0), BadQuery),
    ],
)
def test_wrong_requests_are_refused_with_the_same_message(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, question: object, kind: type[OrganError]
) -> None:
    assert callable(question)
    with pytest.raises(kind) as own:
        question(local_registry)
    with pytest.raises(kind) as other:
        question(remote_registry)
    assert str(other.value) == str(own.value)


def test_an_organ_is_fetched_by_the_beginning_of_its_digest(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, tmp_path: Path
) -> None:
    organ = local_registry.model("base").organs[1]
    for registry, name in ((local_registry, "local.raw"), (remote_registry, "remote.raw")):
        (file,) = registry.organ_files(organ.digest[:10]).files
        assert (file.sha256, file.size_bytes) == (organ.digest, organ.size_bytes)
        assert registry.organ_files(organ.digest).place([tmp_path / name]) == (organ.digest,)
        assert digest_of((tmp_path / name).read_bytes()) == organ.digest
        with pytest.raises(BadDigest):
            registry.organ_files("xyz")
        with pytest.raises((NotFound, Ambiguous)):
            registry.organ_files("00000000")


def test_a_model_is_fetched_byte_for_byte(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, tmp_path: Path
) -> None:
    for name in ("base", "first"):
        come: list[int] = []
        digest = remote_registry.assemble(name, tmp_path / "there.gguf", come.append)
        assert local_registry.assemble(name, tmp_path / "here.gguf") == digest
        data = (tmp_path / "there.gguf").read_bytes()
        assert data == (tmp_path / "here.gguf").read_bytes()
        assert (digest_of(data), sum(come)) == (digest, len(data))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["here.gguf", "there.gguf"]


def test_a_remote_plan_has_the_members_that_scripts_use(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry
) -> None:
    for donor, blocks in (("tuned", 1), ("stranger", "0-1")):
        own = (
            local_registry.compose("base")
            .graft(donor, type="organ", blocks=blocks)
            .purify("fractal", slot="attn_q")
            .plan()
        )
        other = (
            remote_registry.compose("base")
            .graft(donor, type="organ", blocks=blocks)
            .purify("fractal", slot="attn_q")
            .plan()
        )
        assert set(other.findings) == set(own.findings)
        assert other.screen == own.screen
        assert (other.recipe, other.size_bytes, other.can_be_made) == (own.recipe, own.size_bytes, own.can_be_made)
        assert (other.parts, other.planned) == (own.parts, own.planned)
        assert list(map(repr, other.parts)) == list(map(repr, own.parts))
        assert repr(other) == repr(own).replace("ChimeraPlan", "RemotePlan")


@pytest.mark.long
def test_a_chimera_is_made_remotely_and_fetched(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, tmp_path: Path
) -> None:
    composition = remote_registry.compose("base").graft("stranger", type="organ", blocks=0).accept("unrelated-lineage")
    told: list[int] = []
    made = (
        composition.named("local/fetched").plan().assemble(tmp_path / "x.gguf", lambda _what, size: told.append(size))
    )
    assert (made.model, made.created) == ("local/fetched@1", True)
    assert (
        digest_of((tmp_path / "x.gguf").read_bytes())
        == made.sha256
        == local_registry.assemble(made.model, tmp_path / "y.gguf")
    )
    model = remote_registry.model(made.model)
    assert model.recipe == composition.named("local/fetched").recipe
    assert model.recipe is not None
    again = remote_registry.compose(model.recipe).plan().register()
    assert (again.lock_id, again.sha256, again.created) == (made.lock_id, made.sha256, False)
    assert told


def test_an_impossible_chimera_is_refused_before_the_request(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, tmp_path: Path
) -> None:
    for registry in (local_registry, remote_registry):
        plan = registry.compose("base").graft("stranger", type="organ").plan()
        with pytest.raises(OrganError, match="accept unrelated-lineage to make it all the same"):
            plan.assemble(tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_shards_come_as_one_file_whose_organs_are_checked(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, tmp_path: Path
) -> None:
    with local_registry.catalog.reading() as session:
        plans = plan_shards(
            session, local_registry.blobs, model_by_name(session, parse_model_name("stranger")), "cut", 40_000
        )
    for plan in plans:
        place_file(local_registry.blobs, plan, tmp_path / plan.name)
    assert len(plans) > 1
    ingest_file(local_registry, tmp_path / plans[0].name, "local/cut")
    assert remote_registry.assemble("cut", tmp_path / "there.gguf") == local_registry.assemble(
        "cut", tmp_path / "here.gguf"
    )
    assert [name for name, _ in remote_registry.own_files("cut").files] == [plan.name for plan in plans]


def test_a_model_elsewhere_is_found_under_its_other_names(registry: LocalRegistry, tmp_path: Path) -> None:
    for seed, name in enumerate(("tiny-F16", "tiny-Q8_0", "other-F16")):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(small_model(seed=seed))
        ingest_file(registry, path, f"library/{name}")
    with registry.catalog.writing() as session:
        other = model_by_name(session, parse_model_name("library/other-F16"))
        add_other_names(session, other, [parse_model_name("zoo:8b")])
    with serve_registry(registry) as served, RemoteRegistry(served.url) as remote:
        for name in ("zoo:8b", "zoo-8b", "library/other", "other"):
            model = remote.model(name)
            assert (model.name, model.other_names, len(model.organs)) == (
                "library/other-F16@1",
                ("library/zoo-8b",),
                10,
            )
            assert remote.versions(name).items[0].name == "library/other-F16@1"
        with pytest.raises(SeveralModels, match="can mean several models") as caught:
            remote.model("tiny")
        assert caught.value.names == ("library/tiny-F16", "library/tiny-Q8_0")
        with pytest.raises(NotFound, match=r"registered as local/one; no model is registered as local/two"):
            remote.compare("one", "two")
