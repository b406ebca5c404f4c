"""The colours of pages, pictures and the terminal, in one place, so that a colour has one meaning.

They are distinct for every kind of colour vision (after Okabe & Ito), and have a light and a dark form. A page uses
them as CSS custom properties by role: "ink", "merged", "stage-gram".
"""

from __future__ import annotations

_BLUE, _ORANGE, _GREEN = ("#1f6fb2", "#4b93cc"), ("#e69f00", "#e8ad33"), ("#009e73", "#1fb58c")
_PINK, _GREY, _VERMILION = ("#cc79a7", "#d893b8"), ("#8c8c8c", "#a5a5a5"), ("#d55e00", "#e8743b")
_SKY, _SLATE, _YELLOW = ("#56b4e9", "#8fd0f5"), ("#44505e", "#d5dde6"), ("#c9b300", "#e5d84a")
_PURPLE, _BROWN = ("#7a4fb0", "#b99be6"), ("#8a5a2b", "#c79a6b")
_OLIVE, _TEAL = ("#5f7d1e", "#a3c45a"), ("#17918f", "#4fc4c2")
_WINE, _INDIGO = ("#9c2f5f", "#e08aae"), ("#3a3fa0", "#8f95f0")

# series of one drawing, in their order
SERIES = (_BLUE, _ORANGE, _GREEN, _PINK, _GREY, _VERMILION, _SKY, _SLATE, _YELLOW, _PURPLE)

# stages of a job
STAGES = {
    "landmarks": _BROWN,
    "core": _WINE,
    "preconditioner": _INDIGO,
    "read": _PINK,
    "convert": _GREY,
    "block": _BLUE,
    "exp": _GREEN,
    "gram": _ORANGE,
    "product": _OLIVE,
    "predict": _PURPLE,
    "add": _SLATE,
    "write": _TEAL,
    "publish": _YELLOW,
    "merge": _SKY,
    "solve": _VERMILION,
    "other": ("#b3bcc7", "#6b7785"),
}
_ROLES = {
    "ink": ("#1c2430", "#e4e9f0"),
    "soft": ("#5a6573", "#9aa7b6"),
    "line": ("#d9dee5", "#333d49"),
    "accent": _BLUE,
    "mark": ("#00795a", "#35c39a"),  # planned values
    "good": ("#00795a", "#35c39a"),
    "open": ("#9a6700", "#e8ad33"),
    "bad": ("#b84a00", "#f08a4b"),
    # states of a segment
    "waiting": ("#d9dee5", "#333d49"),
    "running": _ORANGE,
    "published": _SKY,
    "merged": _BLUE,
    "retried": _PINK,
    "failed": _VERMILION,
    **{f"c{number}": colours for number, colours in enumerate(SERIES)},
    **{f"stage-{name}": colours for name, colours in STAGES.items()},
}
LIGHT = {role: light for role, (light, _) in _ROLES.items()}
DARK = {role: dark for role, (_, dark) in _ROLES.items()}


def properties(colours: dict[str, str]) -> str:
    """Return CSS custom properties with these colours: "--ink: #1c2430; …"."""
    return " ".join(f"--{role}: {colour};" for role, colour in colours.items())
