"""A registry elsewhere gives scripts the very values that the same registry gives as a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.assembly import place_file, plan_shards
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.client.remote import RemoteRegistry
from organs.registry.digest import digest_of
from organs.registry.errors import Ambiguous, BadDigest, BadName, BadQuery, NotFound, OrganError
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.small_models import ingest_file

QUERIES = ("", "type:organ sort:-theta", "block:1 theta>=10 -type:norm", "unique:organ", "model:local/base nobodyknows")


@pytest.mark.parametrize("query", QUERIES)
def test_a_search_finds_the_same_page_and_counts_the_same(
    here: LocalRegistry, there: RemoteRegistry, query: str
) -> None:
    assert there.search(query) == here.search(query)
    assert there.count(query) == here.count(query)


def test_the_pages_of_a_search_follow_each_other(here: LocalRegistry, there: RemoteRegistry) -> None:
    first = there.search("type:organ", limit=3)
    assert first == here.search("type:organ", limit=3)
    assert there.search("type:organ", limit=3, after=first.next) == here.search("type:organ", limit=3, after=first.next)


def test_a_search_by_likeness_is_the_same(here: LocalRegistry, there: RemoteRegistry) -> None:
    query = f"like:{here.search('slot:ffn_up', limit=1).items[0].digest}"
    assert there.search(query) == here.search(query)
    assert there.search(query).items[0].likeness is not None


@pytest.mark.parametrize("query", ["", "kind:chimera", "kind:model sort:-theta", "base"])
def test_models_are_listed_the_same(here: LocalRegistry, there: RemoteRegistry, query: str) -> None:
    assert there.models(query) == here.models(query)
    assert there.models(query, limit=1) == here.models(query, limit=1)


@pytest.mark.parametrize("name", ["base", "local/tuned", "local/stranger@1", "local/first"])
def test_a_model_is_the_same_with_its_organs_its_relatives_and_its_recipe(
    here: LocalRegistry, there: RemoteRegistry, name: str
) -> None:
    assert there.model(name) == here.model(name)
    assert there.model(name).recipe_yaml == here.model(name).recipe_yaml


def test_a_model_is_found_by_the_digest_of_its_bytes_and_by_that_of_its_lock(
    here: LocalRegistry, there: RemoteRegistry
) -> None:
    first = here.model("first")
    assert there.model(f"sha256:{first.lock_id}") == first
    assert there.model(f"sha256:{here.model('base').digest[:12]}") == here.model("base")


def test_what_fits_a_base_is_the_same(here: LocalRegistry, there: RemoteRegistry) -> None:
    found = here.fitting("base")
    assert {one.model for one in found.items} >= {"local/tuned@1", "local/stranger@1"}
    assert there.fitting("base") == found
    assert there.fitting("base", limit=1) == here.fitting("base", limit=1) != found


def test_two_names_of_one_lock_have_their_own_recipes(here: LocalRegistry, there: RemoteRegistry) -> None:
    made = here.compose("base").graft("tuned", type="organ", blocks=1).named("local/second").plan().register()
    assert there.model("second") == here.model("second")
    assert there.model("second").lock_id == there.model("first").lock_id == made.lock_id


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
def test_what_is_asked_wrongly_is_refused_in_the_same_words(
    here: LocalRegistry, there: RemoteRegistry, question: object, kind: type[OrganError]
) -> None:
    assert callable(question)
    with pytest.raises(kind) as own:
        question(here)
    with pytest.raises(kind) as other:
        question(there)
    assert str(other.value) == str(own.value)


def test_an_organ_is_fetched_by_the_beginning_of_its_digest(
    here: LocalRegistry, there: RemoteRegistry, tmp_path: Path
) -> None:
    organ = here.model("base").organs[1]
    for registry, name in ((here, "local.raw"), (there, "remote.raw")):
        (file,) = registry.organ_files(organ.digest[:10]).files
        assert (file.sha256, file.size_bytes) == (organ.digest, organ.size_bytes)
        assert registry.organ_files(organ.digest).place([tmp_path / name]) == (organ.digest,)
        assert digest_of((tmp_path / name).read_bytes()) == organ.digest
        with pytest.raises(BadDigest):
            registry.organ_files("xyz")
        with pytest.raises((NotFound, Ambiguous)):
            registry.organ_files("00000000")


def test_a_model_is_fetched_to_the_last_byte(here: LocalRegistry, there: RemoteRegistry, tmp_path: Path) -> None:
    for name in ("base", "first"):
        come: list[int] = []
        digest = there.assemble(name, tmp_path / "there.gguf", come.append)
        assert here.assemble(name, tmp_path / "here.gguf") == digest
        data = (tmp_path / "there.gguf").read_bytes()
        assert data == (tmp_path / "here.gguf").read_bytes()
        assert (digest_of(data), sum(come)) == (digest, len(data))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["here.gguf", "there.gguf"]


def test_a_plan_has_what_scripts_use_of_one(here: LocalRegistry, there: RemoteRegistry) -> None:
    for donor, blocks in (("tuned", 1), ("stranger", "0-1")):
        own = here.compose("base").graft(donor, type="organ", blocks=blocks).purify("fractal", slot="attn_q").plan()
        other = there.compose("base").graft(donor, type="organ", blocks=blocks).purify("fractal", slot="attn_q").plan()
        assert set(other.findings) == set(own.findings)
        assert other.prediction == own.prediction
        assert other.prediction.sentence == own.prediction.sentence
        assert (other.recipe, other.size_bytes, other.can_be_made) == (own.recipe, own.size_bytes, own.can_be_made)
        assert (other.parts, other.planned) == (own.parts, own.planned)
        assert list(map(repr, other.parts)) == list(map(repr, own.parts))
        assert repr(other) == repr(own).replace("ChimeraPlan", "RemotePlan")


def test_a_chimera_is_made_there_and_fetched(here: LocalRegistry, there: RemoteRegistry, tmp_path: Path) -> None:
    composition = there.compose("base").graft("stranger", type="organ", blocks=0).accept("unrelated-lineage")
    told: list[int] = []
    made = (
        composition.named("local/fetched").plan().assemble(tmp_path / "x.gguf", lambda _what, size: told.append(size))
    )
    assert (made.model, made.created) == ("local/fetched@1", True)
    assert (
        digest_of((tmp_path / "x.gguf").read_bytes()) == made.sha256 == here.assemble(made.model, tmp_path / "y.gguf")
    )
    model = there.model(made.model)
    assert model.recipe == composition.named("local/fetched").recipe
    assert model.recipe is not None
    again = there.compose(model.recipe).plan().register()
    assert (again.lock_id, again.sha256, again.created) == (made.lock_id, made.sha256, False)
    assert told


def test_what_cannot_be_made_is_refused_before_it_is_asked_for(
    here: LocalRegistry, there: RemoteRegistry, tmp_path: Path
) -> None:
    for registry in (here, there):
        plan = registry.compose("base").graft("stranger", type="organ").plan()
        with pytest.raises(OrganError, match="accept unrelated-lineage to make it all the same"):
            plan.assemble(tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_shards_come_as_one_file_whose_organs_are_checked(
    here: LocalRegistry, there: RemoteRegistry, tmp_path: Path
) -> None:
    with here.catalog.reading() as session:
        plans = plan_shards(session, here.blobs, model_by_name(session, parse_model_name("stranger")), "cut", 40_000)
    for plan in plans:
        place_file(here.blobs, plan, tmp_path / plan.name)
    assert len(plans) > 1
    ingest_file(here, tmp_path / plans[0].name, "local/cut")
    assert there.assemble("cut", tmp_path / "there.gguf") == here.assemble("cut", tmp_path / "here.gguf")
    assert [name for name, _ in there.own_files("cut").files] == [plan.name for plan in plans]
