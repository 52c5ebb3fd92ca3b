"""The claims: known results with the inequality that a correct implementation should show at this scale.

Margins are those thought reachable in minutes on two cores; published gaps, at published sizes, are larger. A pattern
names arms as their suite does, with shell wildcards.
"""

from __future__ import annotations

from benchmarks.report.claim import Claim, Factor, Gap, Limit, Order, Rises, Shape

__all__ = ["CLAIMS"]

ZOOLOGY, BASED = "Arora et al. 2023, arXiv:2312.04927", "Arora et al. 2024, arXiv:2402.18668"
MAMBA, GRAZZI = "Gu & Dao 2023, arXiv:2312.00752", "Grazzi et al. 2024, arXiv:2411.12537"
ALIBI, XIONG = "Press et al. 2021, arXiv:2108.12409", "Xiong et al. 2020, arXiv:2002.04745"


def _recall(text: str, shape: Shape, paper: str = BASED) -> Claim:
    return Claim(text=f"Recall: {text}", paper=paper, suite="recall", task="mqar", shape=shape)


def _copy(text: str, task: str, shape: Shape, paper: str = MAMBA) -> Claim:
    return Claim(text=f"Copy: {text}", paper=paper, suite="copy", task=task, shape=shape)


def _tracking(text: str, task: str, shape: Shape, paper: str = GRAZZI) -> Claim:
    return Claim(text=f"Tracking: {text}", paper=paper, suite="tracking", task=task, shape=shape)


def _mad(text: str, task: str, shape: Shape) -> Claim:
    return Claim(text=f"MAD: {text}", paper="Poli et al. 2024, arXiv:2403.17844", suite="mad", task=task, shape=shape)


def _position(text: str, shape: Shape, paper: str = ALIBI, task: str = "language") -> Claim:
    return Claim(text=f"Extrapolation: {text}", paper=paper, suite="position", task=task, shape=shape)


def _stability(text: str, task: str, shape: Shape, paper: str = XIONG) -> Claim:
    return Claim(text=f"Stability: {text}", paper=paper, suite="stability", task=task, shape=shape)


CLAIMS: tuple[Claim, ...] = (
    _recall(
        "attention and hybrids above elu-linear attention",
        Gap(better=("attention", "hybrid*"), worse=("linear_attention",), margin=0.3),
        ZOOLOGY,
    ),
    _recall("attention solves it", Limit(arms=("attention",), least=0.95), ZOOLOGY),
    _recall("rises with state bytes, all arms", Rises(arms=("*",))),
    _recall("rises with state bytes, windows of attention", Rises(arms=("attention", "attention, window*"))),
    _recall("rises with state bytes, Taylor features", Rises(arms=("taylor*",))),
    _recall("rises with state bytes, gated delta rule", Rises(arms=("gated_delta*",))),
    _recall("rises with state bytes, Mamba-2", Rises(arms=("mamba2*",))),
    _copy(
        "induction needs two attention layers",
        "induction",
        Gap(better=("attention, 2 layers",), worse=("attention, 1 layer",), margin=0.4),
        "Olsson et al. 2022, arXiv:2209.11895",
    ),
    _copy(
        "two attention layers learn induction",
        "induction",
        Limit(arms=("attention, 2 layers",), least=0.9),
        "Olsson et al. 2022, arXiv:2209.11895",
    ),
    _copy(
        "selective dynamics copy selectively, fixed ones do not",
        "selective",
        Gap(better=("mamba",), worse=("mamba_fixed",), margin=0.4),
    ),
    _copy("Mamba's induction reaches 16 times the length", "extrapolation", Limit(arms=("mamba",), least=0.9)),
    _copy(
        "rotary attention's does not reach 4 times",
        "extrapolation",
        Limit(arms=("attention",), metric="accuracy@4x", most=0.6),
    ),
    _copy(
        "palindromes: attention, KDA, gated delta, GLA",
        "palindrome",
        Order(arms=("attention", "kda", "gated_delta", "gla")),
        "Kimi Team 2025, arXiv:2510.26692, section 5.1",
    ),
    _tracking(
        "negative eigenvalues solve parity",
        "parity",
        Limit(arms=("delta_negative", "gated_delta_negative"), least=0.98),
    ),
    _tracking("an LSTM solves parity", "parity", Limit(arms=("lstm",), least=0.98)),
    _tracking(
        "positive eigenvalues do not",
        "parity",
        Limit(arms=("delta", "gated_delta", "mamba", "mamba2"), most=0.75),
    ),
    _tracking(
        "positive eigenvalues do not at twice the length",
        "parity",
        Limit(arms=("delta", "gated_delta", "mamba", "mamba2"), metric="accuracy@2x", most=0.75),
    ),
    _tracking("attention does not", "parity", Limit(arms=("attention",), most=0.75), "Hahn 2020, arXiv:1906.06755"),
    _tracking(
        "words over S3 at twice the length need negative eigenvalues",
        "s3",
        Gap(better=("delta_negative",), worse=("delta",), margin=0.3, metric="accuracy@2x"),
    ),
    _tracking(
        "swaps of five at twice the length need negative eigenvalues",
        "s5_swaps",
        Gap(better=("delta_negative",), worse=("delta",), margin=0.3, metric="accuracy@2x"),
    ),
    _tracking("an LSTM counts", "count", Limit(arms=("lstm",), least=0.95), "Deletang et al. 2022, arXiv:2207.02098"),
    _tracking(
        "an LSTM closes brackets", "dyck", Limit(arms=("lstm",), least=0.95), "Deletang et al. 2022, arXiv:2207.02098"
    ),
    _mad(
        "attention before recurrences on fuzzy recall",
        "fuzzy",
        Gap(better=("attention",), worse=("mamba", "gated_delta", "delta", "gla"), margin=0.15),
    ),
    _mad("Mamba compresses no worse than attention", "compression", Order(arms=("mamba", "attention"))),
    _mad(
        "gated arms memorise more than the plain delta rule",
        "memorisation",
        Gap(better=("mamba", "gla"), worse=("delta",), margin=0.1),
    ),
    _position("ALiBi and T5 bias stay flat", Limit(arms=("ALiBi", "T5 bias"), metric="growth", most=0.1)),
    _position("sinusoidal does not", Limit(arms=("sinusoidal",), metric="growth", least=0.3)),
    _position("ALiBi before rotary", Gap(better=("ALiBi",), worse=("rotary",), margin=0.3)),
    _position("T5 bias before rotary", Gap(better=("T5 bias",), worse=("rotary",), margin=0.1)),
    _position("rotary before sinusoidal", Gap(better=("rotary",), worse=("sinusoidal",), margin=0.2)),
    _position(
        "YaRN, NTK, interpolation, plain rotary",
        Order(arms=("rotary, YaRN", "rotary, NTK", "rotary, PI", "rotary")),
        "Peng et al. 2023, arXiv:2309.00071",
    ),
    _position(
        "interpolation harms the trained length, YaRN less",
        Gap(better=("rotary, YaRN",), worse=("rotary, PI",), margin=0.02, metric="loss@1x"),
        "Peng et al. 2023, arXiv:2309.00071",
    ),
    _stability(
        "post-norm without warm-up fails at the highest rate, pre-norm does not",
        "norms",
        Gap(better=("pre, no warm-up",), worse=("post, no warm-up",), margin=0.3),
    ),
    _stability(
        "warm-up mends post-norm",
        "norms",
        Gap(better=("post, warm-up",), worse=("post, no warm-up",), margin=0.3),
    ),
    _stability(
        "pre-norm does without warm-up",
        "norms",
        Gap(better=("pre, no warm-up",), worse=("pre, warm-up",), margin=-0.3),
    ),
    _stability(
        "a norm on queries and keys makes the rate matter less",
        "logits",
        Factor(lower="QK norm", higher="plain", most=0.6),
        "Wortsman et al. 2023, arXiv:2309.14322",
    ),
    _stability(
        "branches started at 1 / sqrt(branches) keep the residual stream",
        "growth",
        Limit(arms=("pre, scaled",), most=3.0),
        "Radford et al. 2019, section 2.3",
    ),
    _stability(
        "others let it grow with depth",
        "growth",
        Limit(arms=("pre, unscaled",), least=8.0),
        "Radford et al. 2019, section 2.3",
    ),
    _stability("pre-norm's last gradient falls with depth", "gradient", Limit(arms=("pre",), least=-0.7, most=-0.3)),
    _stability("post-norm's does not", "gradient", Limit(arms=("post",), least=-0.2, most=0.2)),
)
