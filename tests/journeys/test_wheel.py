"""A built wheel, in an environment of its own and from another folder, does the whole journey."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.small_models import small_model

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PORTIONS = ("registry", "ingest", "cli", "web", "migrations")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a user would build it: pip fetches the build backend."""
    folder = tmp_path_factory.mktemp("dist")
    run(*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it. Its dependencies are those of the tests, which take long to fetch."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    target = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (target / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    run(
        *PIP,
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
        wheel,
        cwd=folder,
    )
    return folder / "bin"


def test_the_wheel_has_the_product_with_its_pages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {name.rpartition("/")[2] for name in archive.namelist()} - {name.rpartition("/")[2] for name in names}
    assert about >= {"METADATA", "LICENSE"}
    assert {name.partition("/")[0] for name in names} == {"organs"}
    tree = {f"organs/{path.relative_to(ROOT)}" for name in PORTIONS for path in (ROOT / name).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == tree
    pages = {f"organs/{path.relative_to(ROOT)}" for path in (ROOT / "docs").rglob("*.md")}
    assert pages | {f"organs/{portion}/py.typed" for portion in PORTIONS} <= names
    for folder in ("templates", "static"):
        assert any(name.startswith(f"organs/web/{folder}/") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".gguf", ".sqlite3"))]


def test_where_the_links_became_text_files_the_build_stops_with_a_sentence(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/check_links.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src" / "organs").mkdir()
    for name in (*PORTIONS, "docs"):
        (tmp_path / "src" / "organs" / name).write_text(f"../../{name}")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "src/organs: cli, docs, ingest, migrations, registry, web: not a link to the folder" in done.stderr
    assert not list(tmp_path.rglob("*.whl"))


STRANGER = """
from organs.registry import LocalRegistry, Registry, RemoteRegistry, open_registry
from organs.registry.errors import NotFound


def both(local: LocalRegistry, remote: RemoteRegistry) -> list[Registry]:
    return [local, remote]


def thetas(folder: str) -> list[float]:
    with open_registry(folder) as registry:
        try:
            page = registry.search("type:organ theta>=40 sort:-theta", limit=10)
        except NotFound:
            return []
        return [organ.theta for organ in page.items if organ.theta is not None]
"""


def test_another_project_passes_strict_type_checks_against_the_wheel(environment: Path, tmp_path: Path) -> None:
    def checked(source: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "stranger.py").write_text(source)
        command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment / "python"]
        return subprocess.run(
            [*map(str, command), "stranger.py"], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    right, wrong = checked(STRANGER), checked(STRANGER.replace("organ.theta for", "organ.thetas for"))
    assert right.returncode == 0, right.stdout
    assert 'has no attribute "thetas"' in wrong.stdout


def test_packages_with_modules_of_the_same_names_can_be_installed_beside_it(environment: Path, tmp_path: Path) -> None:
    for name in PORTIONS:
        (tmp_path / "stranger" / name).mkdir(parents=True)
        (tmp_path / "stranger" / name / "__init__.py").write_text(f"OWNER = 'stranger {name}'\n")
    (tmp_path / "stranger" / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "stranger"\nversion = "1"\n'
        f"[tool.hatch.build.targets.wheel]\npackages = {list(PORTIONS)!r}\n"
    )
    run(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", ".", "./stranger", cwd=tmp_path)
    pip = (*PIP, "--python", environment / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", *tmp_path.glob("*.whl"), cwd=tmp_path)
    both = "import web, organs.web; print(web.OWNER); print(organs.web.__name__)"
    try:
        assert run(environment / "python", "-c", both, cwd=tmp_path) == "stranger web\norgans.web\n"
        assert run(environment / "organ", "serve", "--help", cwd=tmp_path)
    finally:
        run(*pip, "uninstall", "--quiet", "--yes", "stranger", cwd=tmp_path)
    assert run(environment / "python", "-c", "import organs.web, organs.cli.main", cwd=tmp_path) == ""


def test_the_wheel_in_its_own_environment_migrates_ingests_and_assembles(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "python", "-c", "import organs.registry; print(organs.registry.__file__)", cwd=tmp_path)
    assert where.startswith(str(environment.parent)), "the installed one, not the checkout"
    organ, home = environment / "organ", str(tmp_path / "home")
    (tmp_path / "little.gguf").write_bytes(small_model())
    assert run(organ, "--version", cwd=tmp_path).startswith("organ, version ")
    assert run(organ, "ingest", "-q", "little.gguf", cwd=tmp_path, ORGAN_HOME=home) == "local/little@1\n"
    run(organ, "assemble", "little", "-o", "copy.gguf", cwd=tmp_path, ORGAN_HOME=home)
    assert (tmp_path / "copy.gguf").read_bytes() == small_model()
    assert "all are sound" in run(organ, "verify", "--read-data", cwd=tmp_path, ORGAN_HOME=home)
