"""Format numbers as text: counts, rates, durations, metrics."""

import math

MISSING = "\N{EN DASH}"
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def count_text(value: float) -> str:
    return f"{value:,.0f}"


def metric_text(name: str, value: float | None) -> str:
    """Format a metric: accuracies in percent, others with four significant digits, a dash for None."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(float(value))
    if is_share(name):
        return f"{100 * value:.2f} %"
    if 1e-3 <= abs(value) < 1e4 or value == 0:
        return f"{value:#.4g}".rstrip(".")
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.3g}"


def is_share(name: str) -> bool:
    return "accuracy" in name.lower()


def gap_text(name: str, gap: float) -> str:
    """A difference of a metric; of shares in percentage points."""
    return f"{100 * gap:+.2f} points" if is_share(name) else f"{gap:+.4g}"


def interval_text(name: str, low: float, high: float) -> str:
    return f"{gap_text(name, low).removesuffix(' points')} to {gap_text(name, high)}"


def rate_text(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return f"{MISSING} samples/s"
    return f"{value:,.0f} samples/s" if value >= 10 else f"{value:.1f} samples/s"


def duration_text(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    rest = round(seconds)
    largest = next(index for index, (_, size) in enumerate(UNITS) if rest >= size)
    parts = []
    for unit, size in UNITS[largest : largest + 2]:
        number, rest = divmod(rest, size)
        parts += [f"{number} {unit}"] if number else []
    return " ".join(parts)


def learners_text(learners: float) -> str:
    return "1 learner" if learners == 1 else f"{learners:,.10g} learners"
