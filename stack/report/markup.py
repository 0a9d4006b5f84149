"""HTML: tags that escape their content, and tables."""

from __future__ import annotations

import base64
import html
import zlib
from collections.abc import Iterable, Sequence

from stack.explore.table import number

PLAIN_LIMIT = 24_000  # longer texts are compressed
FOLDED_LIMIT = 1000  # likewise, of texts that are not shown at first: their elements take long


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """Escapes a value for HTML; returns text of type `Html` unchanged."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(str(value), quote=True))


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Joins pieces of text or HTML to one HTML text; escapes those that are not HTML."""
    return Html(between.join(escaped(p) for p in parts))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Returns an element. `class_` and `for_` lose their underscore, `data_s` becomes `data-s`.

    Attributes that are None or False are left out; True gives an attribute without a value.
    """
    shown: list[str] = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        shown.append(f" {label}" if value is True else f' {label}="{escaped(value)}"')
    return Html(f"<{name}{''.join(shown)}>{joined(children)}</{name}>")


def cell(value: object) -> Html:
    """Returns a table cell: numbers to the right, None as a dash."""
    if value is None:
        return tag("td", "–", class_="n")
    if isinstance(value, bool):
        return tag("td", "yes" if value else "no")
    if isinstance(value, int | float):
        return tag("td", number(float(value)) if isinstance(value, float) else value, class_="n")
    text = str(value)
    is_number = not isinstance(value, Html) and text[:1].isdigit() and len(text) < 14
    return tag("td", value, class_="n" if is_number else None)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    caption: str,
    marks: Sequence[dict[str, object]] = (),
) -> Html:
    """Returns a table that scrolls if the page is narrow. `marks` are attributes of rows."""
    lines: list[Html] = []
    for i, row in enumerate(rows):
        lines.append(tag("tr", *map(cell, row), **(marks[i] if i < len(marks) else {})))
    made = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *(tag("th", h, scope="col") for h in head))),
        tag("tbody", *lines),
    )
    return tag("div", made, class_="wide", tabindex="0", role="region", aria_label=caption)


def folded(title: object, *inside: object, **attributes: object) -> Html:
    """Returns a collapsed section."""
    return tag("details", tag("summary", title), *inside, **attributes)


def figure(drawing: Html, caption: str, as_table: Html, frame: str = "wide") -> Html:
    """Returns a drawing, with the same data as a table for screen readers.

    `frame` is the class of the box in which the drawing scrolls.
    """
    return tag(
        "figure",
        tag("div", drawing, class_=frame, tabindex="0", role="region", aria_label=caption),
        tag("figcaption", caption),
        folded("as a table", as_table),
    )


def text_box(lines: Html, label: str, language: str = "ir", *, is_folded: bool = False) -> Html:
    """Returns a box of text lines; long texts are compressed, and a script unpacks them when shown.

    A script also colours the words of the `language`. The bytes depend only on the lines.

    Args:
        is_folded: True if the page opens without showing the box; short texts are compressed too.
    """
    box = {"class_": "text", "tabindex": "0", "role": "region", "aria_label": label}
    box["data_lang"] = language
    if len(lines) <= (FOLDED_LIMIT if is_folded else PLAIN_LIMIT):
        return tag("pre", lines, **box)
    packed = base64.b64encode(zlib.compress(lines.encode(), 9)).decode()
    note = f"{label}: {lines.count(chr(10))} lines, shown where scripts run"
    return tag("pre", note, data_packed=packed, **box)
