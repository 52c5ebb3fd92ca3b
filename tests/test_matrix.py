"""Every part in every family: a cell trains with falling loss, or refuses in one sentence that says why."""

from __future__ import annotations

import pytest

from benchmarks import matrix


def check(family: str, **choices: str) -> None:
    found = matrix.cell(family, **choices)
    if found.refusal is None:
        assert found.trains, f"losses fell to {found.ratio:.2f} of the first only"
    else:
        text = found.refusal
        root = family.split()[0]
        assert "\n" not in text and text.startswith(root) and ("needs" in text or "choices" in text), text


@pytest.mark.parametrize("family", matrix.FAMILIES)
@pytest.mark.parametrize("mixer", matrix.choices_of("mixer"))
def test_mixer_in_family(family: str, mixer: str) -> None:
    check(family, mixer=mixer)


@pytest.mark.parametrize("family", [family for family in matrix.FAMILIES if family != "t5 cross"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("ffn", "norm", "residual", "position") for name in matrix.choices_of(kind)],
)
def test_part_in_family(family: str, kind: str, name: str) -> None:
    check(family, **{kind: name})


def test_the_table_shows_ratios_and_numbered_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "vit.0.mixer: no (needs CAUSAL)"
    told = {"a": matrix.Cell(ratio=0.5), "b": matrix.Cell(ratio=0.95), "c": matrix.Cell(refusal=refusal)}
    monkeypatch.setattr(matrix, "FAMILIES", {"vit": None})
    monkeypatch.setattr(matrix, "cell", lambda family, mixer: told[mixer])
    lines = matrix.table("mixer", ["a", "b", "c"]).splitlines()
    assert lines[2:5] == ["| a | 0.50 |", "| b | **0.95** |", "| c | (1) |"]
    assert lines[-1] == f"(1) `{refusal}`"
