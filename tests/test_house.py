"""The house stands as designed: imports run down, importing is light, modules are short, the wheel works alone."""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("annotators", "engines", "fewl", "mitigate")
MAY_IMPORT = {  # packages of this house, beside itself
    "engines": set(),
    "annotators": {"engines"},
    "fewl": {"engines", "annotators.text"},
    "mitigate": {"annotators", "fewl", "engines"},
    "app": {"mitigate"},
    "examples": {"mitigate", "annotators", "fewl", "engines"},
}
NOT_PRODUCT = ("tests", "benchmarks", "examples")
HEAVY = "torch transformers openai sentence_transformers numpy.testing matplotlib sklearn gradio vllm".split()


def python(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {"capture_output": True, "text": True, "check": False, "timeout": 240}
    return subprocess.run([sys.executable, *args], cwd=cwd, env={**os.environ, **env}, **settings)


def imported_names(source: str, package: str) -> set[str]:
    """Every module or member that a source file imports, with relative imports made absolute."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def sources(*rooms: str) -> list[Path]:
    return [p for room in rooms for p in [*(ROOT / room).rglob("*.py"), *ROOT.glob(f"{room}.py")]]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    return imported_names(path.read_text(encoding="utf-8"), ".".join(path.relative_to(ROOT).parent.parts))


def forbidden(names: set[str], room: str) -> set[str]:
    allowed = MAY_IMPORT[room] | {room}
    ours = {name for name in names if name.split(".")[0] in (*MAY_IMPORT, *NOT_PRODUCT)}
    return {n for n in ours if not any(n == a or n.startswith(a + ".") for a in allowed)}


def test_imports_run_downwards_only() -> None:
    seen = imported_names("def f():\n    from annotators import records\nfrom .cli import run", "mitigate")
    assert seen == {"annotators.records", "mitigate.cli.run"}  # relative ones too, and those inside functions
    found = {module_of(p): forbidden(imports_of(p), room) for room in MAY_IMPORT for p in sources(room)}
    assert {name: bad for name, bad in found.items() if bad} == {}
    # Only the command line imports itself.
    paths = [path for path in sources(*PACKAGES) if not module_of(path).startswith("mitigate.cli")]
    wrong = {module_of(p): n for p in paths for n in imports_of(p) if n.startswith("mitigate.cli")}
    assert wrong == {}


def test_nobody_imports_tests_or_benchmarks() -> None:
    pairs = [(module_of(p), name) for p in sources(*PACKAGES, "app", "examples", "tests") for name in imports_of(p)]
    assert [(module, name) for module, name in pairs if re.match(r"benchmarks\b|tests\..*\btest_", name)] == []


def test_no_modules_import_in_a_circle() -> None:
    """Imports inside functions count too: they only hide a circle."""
    paths = {module_of(path): path for path in sources(*PACKAGES)}
    graph = {}
    for name, path in paths.items():
        targets = {n if n in paths else n.rpartition(".")[0] for n in imports_of(path)}
        graph[name] = {t for t in targets if t in paths and t != name and not name.startswith(t + ".")}
    assert len(graph) > 80
    TopologicalSorter(graph).prepare()  # a CycleError names the modules of a circle


STANDARD = (
    "asyncio, concurrent.futures.process, email.message, http.server, logging.config, multiprocessing.pool, sqlite3, "
    "unittest.mock, xml.dom.minidom"
)


def import_seconds(modules: str) -> float:
    """CPU seconds that an import takes in a fresh process; none of the heavy libraries may come with it."""
    code = (
        f"import sys, time; start = time.process_time(); import {modules}; spent = time.process_time() - start;"
        f"import json; print(json.dumps([spent, sorted(set({HEAVY!r}) & set(sys.modules))]))"
    )
    done = python("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    seconds, heavy = json.loads(done.stdout)
    assert heavy == []
    return float(seconds)


@pytest.mark.parametrize("module", [*PACKAGES, "mitigate.cli"])
def test_importing_is_light(module: str) -> None:
    """Half a second where the modules above, of Python itself, take 0.11; a slower machine is slower with both."""
    spent, limit = import_seconds(module), 0.15  # light on any machine
    for _ in range(5):
        if spent >= limit:
            spent, limit = min(spent, import_seconds(module)), 4.5 * import_seconds(STANDARD)
    assert spent < limit


def test_no_path_of_a_machine_is_committed() -> None:
    pattern = re.compile(r"(?<![\w.:/@~-])/(?:home|root|Users|work|tmp|var/folders|mnt|private)/[\w.-]+")
    found = {}
    for name in tracked():
        data = (ROOT / name).read_bytes()
        if b"\0" not in data and (hit := pattern.search(data.decode(errors="replace"))):  # fuzzed inputs are any bytes
            found[name] = hit.group()
    assert found == {}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


WHOLE = f"import sys, mitigate.cli.main as program, {', '.join(PACKAGES)}; " + (
    f"print(*(m.__file__ for m in ({', '.join(PACKAGES)})), file=sys.stderr); sys.exit(program.main())"
)


def tracked(*folders: str) -> set[str]:
    listed = subprocess.check_output(["git", "ls-files", "-z", *folders], cwd=ROOT, text=True)
    return {name for name in listed.split("\0") if (ROOT / name).is_file()}


def test_wheel_holds_every_file_and_recipe(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    recipes = {f"mitigate/recipes/files/{name.removeprefix('recipes/')}" for name in tracked("recipes")}
    assert recipes
    assert (tracked(*PACKAGES) | recipes) - held == set()
    extra = {name.split("/")[0] for name in held} - set(PACKAGES)
    assert {re.sub(r"-[\d.]+\.dist-info", "", name) for name in extra} == {"hallucination_toolkit"}


def test_wheel_annotates_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    (entry,) = installed.glob("*.dist-info/entry_points.txt")
    assert "mitigate = mitigate.cli.__main__:main" in entry.read_text()
    text = "The Jalali calendar was introduced in 1079."
    for name in ("reference.txt", "answer.txt"):
        (tmp_path / name).write_text(text)
    files = "annotate --reference reference.txt --answer answer.txt --json --html page.html".split()
    done = python("-c", WHOLE, *files, cwd=tmp_path, PYTHONPATH=str(installed), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert [Path(file).parent.parent for file in done.stderr.splitlines()[0].split()] == [installed] * 4
    assert "Loading weights" not in done.stderr  # a bar where nobody looks
    assert [(s["status"], s["label"]) for s in json.loads(done.stdout)["sentences"]] == [("checked", "supported")]
    assert "Jalali" in (tmp_path / "page.html").read_text()
