"""What SECURITY.md promises of the code: data is never run, weights are never unpickled, nothing starts a shell.

By reading the sources, so that a new module can't forget it; what the servers and pages promise is tested beside them
(`test_serve.py`, `test_terminal.py`, `test_html.py`, the demo's tests).
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(p for room in ("annotators", "engines", "fewl", "mitigate") for p in (ROOT / room).rglob("*.py"))
UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
RUNNING = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"}
MODELS = ("AutoModel", "SentenceTransformer", "AutoPeftModel")


def dotted(node):
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else node.attr
    return ""


def faults(source):
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"imports {name}" for name in names if name.split(".")[0] in UNPICKLING]
        if isinstance(node, ast.FunctionDef):  # a switch that is handed through must be off unless it is given
            off = {a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)}
            switch = off.get("trust_remote_code", ast.Constant(False))
            placed = "trust_remote_code" in {a.arg for a in (*node.args.posonlyargs, *node.args.args)}
            if placed or not isinstance(switch, ast.Constant) or switch.value is not False:
                found.append(f"{node.name} runs code of a checkpoint by default")
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        values = {k.arg: k.value.value if isinstance(k.value, ast.Constant) else dotted(k.value) for k in node.keywords}
        if isinstance(node.func, ast.Name) and name in RUNNING:
            found.append(f"calls {name}")
        if name in SHELLS or values.get("shell"):
            found.append(f"starts a shell with {name}")
        if name == "torch.load" and values.get("weights_only") is not True:
            found.append("torch.load unpickles")
        if name in ("np.load", "numpy.load") and values.get("allow_pickle") is not False:
            found.append("np.load may unpickle")
        if name.endswith(("read_pickle", "to_pickle")):
            found.append(f"calls {name}")
        if name in ("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"):
            loader = str(values.get("Loader"))
            if loader not in ("yaml.SafeLoader", "yaml.CSafeLoader", "_Loader"):
                found.append(f"{name} without a safe loader")
        if values.get("trust_remote_code", False) not in (False, "trust_remote_code"):
            found.append(f"{name} runs code of a checkpoint")
        if name.endswith(".from_pretrained") and name.startswith(MODELS) and values.get("use_safetensors") is not True:
            found.append(f"{name} takes weights that are no safetensors")
        if name.endswith("SentenceTransformer") and "'use_safetensors': True" not in ast.unparse(node):
            found.append(f"{name} takes weights that are no safetensors")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_source(path):
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system ['echo']", "!!python/name:os.system", "!!new a"])
def test_a_recipe_runs_no_code(text, tmp_path):
    from mitigate.io import UsageError
    from mitigate.recipes.config import read_yaml
    from mitigate.rewards.config import read_config

    path = tmp_path / "recipe.yaml"
    path.write_text(f"kind: {text}\n")
    for read in (read_yaml, read_config):
        with pytest.raises(UsageError, match="expected YAML"):
            read(path)


@pytest.mark.parametrize(("source", "fault"), [
    ("import pickle", "imports pickle"),
    ("from joblib import load", "imports joblib"),
    ("eval(x)", "calls eval"),
    ("import subprocess\nsubprocess.run(x, shell=True)", "starts a shell"),
    ("os.system(x)", "starts a shell"),
    ("torch.load(x)", "torch.load"),
    ("np.load(x)", "np.load"),
    ("yaml.load(x, Loader=yaml.Loader)", "without a safe loader"),
    ("AutoModel.from_pretrained(x)", "no safetensors"),
    ("SentenceTransformer(x)", "no safetensors"),
    ("AutoTokenizer.from_pretrained(x, trust_remote_code=True)", "runs code"),
    ("AutoTokenizer.from_pretrained(x, trust_remote_code=args.trust)", "runs code"),
    ("def f(*, trust_remote_code=True): pass", "by default"),
    ("def f(*, trust_remote_code): pass", "by default"),
    ("def f(trust_remote_code=False): pass", "by default"),
])  # fmt: skip
def test_faults_are_seen(source, fault):
    assert fault in " ".join(faults(source))
    for fine in ("model.eval()", "re.compile(x)", "yaml.safe_load(x)", "torch.load(x, weights_only=True)"):
        assert faults(fine) == []
