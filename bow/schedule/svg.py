"""What all pictures have in common."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

WIDTH = 1200
"""Of every picture, in pixels."""

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
"""Of devices, in turn."""


def svg(parts: Iterable[str], height: float, title: str) -> str:
    """A picture as SVG, on white and with a title.

    Example:
        >>> svg(["<circle r='2'/>"], 10, "a < b").splitlines()[2:]
        ['<text x="10" y="18" font-size="13">a &lt; b</text>', "<circle r='2'/>", '</svg>']
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="18" font-size="13">{escape(title)}</text>',
    )
    return "\n".join([*head, *parts, "</svg>"])


def legend(names: Sequence[str], colours: Sequence[str], left: float) -> Iterator[str]:
    """Names side by side beneath the title, each with its colour."""
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        x = left + 110 * number
        yield f'<rect x="{x}" y="28" width="14" height="14" fill="{colour}" stroke="#777"/>'
        yield f'<text x="{x + 20}" y="39">{escape(name)}</text>'
