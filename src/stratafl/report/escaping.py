"""Texts for HTML: names come from files, with anything in them."""

import html

from stratafl.errors import printable


def escape(text: str) -> str:
    """The text: markup shows as it is written, and nothing steers the direction or the place of writing."""
    return html.escape(printable(text))
