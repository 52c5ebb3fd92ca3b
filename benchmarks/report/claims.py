"""The claims: known results with the inequality that a correct implementation should show at this scale.

Margins are those thought reachable in minutes on two cores; published gaps, at published sizes, are larger. A pattern
names arms, `*` and all.
"""

from __future__ import annotations

from benchmarks.report.claim import Claim, Gap, Limit, Rises

__all__ = ["CLAIMS"]

CLAIMS: tuple[Claim, ...] = (
    Claim(
        text="Recall: attention and hybrids above elu-linear attention",
        paper="Arora et al. 2023, arXiv:2312.04927",
        suite="recall",
        task="*",
        shape=Gap(better=("attention", "hybrid*"), worse=("linear_attention",), margin=0.3),
    ),
    Claim(
        text="Recall: accuracy rises with state bytes",
        paper="Arora et al. 2024, arXiv:2402.18668",
        suite="recall",
        task="*",
        shape=Rises(),
    ),
    Claim(
        text="Extrapolation: ALiBi flat beyond the trained length",
        paper="Press et al. 2021, arXiv:2108.12409",
        suite="position",
        task="language",
        shape=Limit(arms=("ALiBi",), metric="growth", most=0.1),
    ),
    Claim(
        text="Extrapolation: sinusoidal fails where ALiBi and T5 bias do not",
        paper="Press et al. 2021, arXiv:2108.12409",
        suite="position",
        task="language",
        shape=Gap(better=("ALiBi", "T5 bias"), worse=("sinusoidal",), margin=0.2),
    ),
)
