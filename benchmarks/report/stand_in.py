import math, statistics as st
from dataclasses import dataclass
from scipy import stats


@dataclass(frozen=True)
class Spread:
    n: int
    mean: float
    low: float
    high: float
    median: float
    q1: float
    q3: float


def spread(v):
    v = list(v)
    n = len(v)
    m = st.fmean(v)
    h = stats.t.ppf(0.975, n - 1) * st.stdev(v) / math.sqrt(n) if n > 1 else math.nan
    import numpy as np

    q1, md, q3 = np.quantile(v, [0.25, 0.5, 0.75])
    return Spread(n, m, m - h, m + h, md, q1, q3)


def wilson(k, n):
    r = stats.binomtest(k, n).proportion_ci(method="wilson")
    return r.low, r.high


@dataclass(frozen=True)
class Paired:
    mean: float
    low: float
    high: float
    p: float
    n: int


def paired(d):
    s = spread(d)
    p = stats.ttest_1samp(d, 0).pvalue if len(d) > 1 and st.stdev(d) > 0 else math.nan
    return Paired(s.mean, s.low, s.high, p, s.n)


def holm(ps):
    from scipy.stats import false_discovery_control

    o = sorted(range(len(ps)), key=lambda i: ps[i])
    out = [0] * len(ps)
    run = 0
    for r, i in enumerate(o):
        run = max(run, min(1, (len(ps) - r) * ps[i]))
        out[i] = run
    return out


def sensitivity(curve, higher):
    v = [x for x in curve.values() if math.isfinite(x)]
    best = max(v) if higher else min(v)
    return sum(abs(x - best) for x in v) / len(v)
