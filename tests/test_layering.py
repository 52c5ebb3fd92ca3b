"""Imports go one way, and the library runs without the training stack."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = {
    "zoo/registry.py": 0,
    "zoo/files.py": 0,
    "zoo/ops": 1,
    "zoo/blocks": 2,
    "zoo/models": 3,
    "zoo/diffusion": 3,
    "zoo/interop": 4,
    "zoo/inspection": 4,
    "zoo/generation": 4,
    "zoo/speech": 4,
    "zoo": 5,
    "recipes": 6,
    "benchmarks": 7,
}


def layer(path: str) -> int | None:
    matches = [name for name in LAYERS if path == name or path.startswith(name.removesuffix(".py") + "/")]
    matches += [name for name in LAYERS if path == name.removesuffix(".py")]
    return LAYERS[max(matches, key=len)] if matches else None


def imports(path: Path) -> set[str]:
    """Modules that a file imports when it is imported itself."""
    found: set[str] = set()

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.Import):
                found.update(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
                found.update(f"{node.module}.{name.name}" for name in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                visit(node.body + node.orelse)
            elif isinstance(node, (ast.Try, ast.With)):
                visit(node.body)

    visit(ast.parse(path.read_text()).body)
    return found


FILES = sorted(
    str(path.relative_to(ROOT)) for top in ("zoo", "recipes", "benchmarks") for path in (ROOT / top).rglob("*.py")
)


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_lies_below_it(file: str) -> None:
    mine = layer(file)
    assert mine is not None, f"{file} has no place in the layers"
    for module in imports(ROOT / file):
        if module.split(".")[0] in ("zoo", "recipes", "benchmarks"):
            path = module.replace(".", "/")
            if module == "zoo" or not ((ROOT / path).exists() or (ROOT / f"{path}.py").exists()):
                continue  # `import zoo` costs nothing and is lazy; a name inside a module is judged by its module
            theirs = layer(path if (ROOT / path).is_dir() else f"{path}.py")
            assert theirs is not None and theirs <= mine, f"{file} imports {module}"


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("zoo/")])
def test_the_library_names_no_training_stack(file: str) -> None:
    heavy = {name.split(".")[0] for name in imports(ROOT / file)} & {"lightning", "hydra", "datasets", "omegaconf"}
    assert not heavy


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.split())


def test_blocks_load_no_training_stack() -> None:
    loaded = loaded_after("import zoo, zoo.blocks; zoo.create_mixer('attention', dim=8, heads=2)")
    assert "torch" in loaded
    assert not loaded & {
        "lightning",
        "hydra",
        "datasets",
        "omegaconf",
        "torchmetrics",
        "timm",
        "recipes",
        "transformers",
    }


def test_importing_the_package_and_the_command_line_loads_no_torch() -> None:
    assert not loaded_after("import zoo, zoo.run, zoo.__main__, zoo.predict") & {"torch", "hydra", "lightning", "numpy"}


def test_adding_a_mixer_takes_one_file_as_the_guide_shows(tmp_path: Path) -> None:
    """The example of CONTRIBUTING.md, in a file of the user's own, is causal and is refused where it does not fit."""
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = [block.partition("```")[0] for block in guide.split("```python\n")[1:] if '"mixer", "mean"' in block]
    (tmp_path / "mine.py").write_text(example)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import mine, zoo, torch\n"
        "mixer, x = zoo.create_mixer('mean', dim=8, causal=True, init_std=1.0), torch.randn(2, 5, 8)\n"
        "y, changed = mixer(x, zoo.Context()), x.clone()\n"
        "changed[:, 3:] += 1\n"
        "z = mixer(changed, zoo.Context())\n"
        "mean = mixer.out(x[:, :2].mean(1))\n"
        "print(y.shape, torch.equal(z[:, :3], y[:, :3]), torch.allclose(y[:, 1], mean, atol=1e-5))\n"
        "try: zoo.create_model('vit', mixer='mean')\n"
        "except zoo.ConfigError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "torch.Size([2, 5, 8]) True True" in run.stdout
    assert "vit.0.mixer: 'mean' cannot see the whole row (needs BIDIRECTIONAL). Fits: attention" in run.stdout
