"""Sphinx's settings. Nothing a reader's browser loads comes from elsewhere."""

from __future__ import annotations

from pygments.lexers import PostgresLexer  # type: ignore[import-untyped]
from sphinx.application import Sphinx

from faultline import __version__

project = "Faultline"
author = "the Faultline authors"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "index"

myst_enable_extensions: list[str] = []  # plain Markdown, as a forge reads it
myst_heading_anchors = 4
myst_links_external_new_tab = False

nitpicky = True
pygments_style, pygments_dark_style = "friendly", "github-dark"
highlight_language = "text"

html_theme = "furo"
html_title = "Faultline"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "../src/faultline/service/dashboard/static/icon.svg"
html_copy_source = html_show_sourcelink = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#0b5cad",
        "color-brand-content": "#0b5cad",
        "color-brand-visited": "#0b5cad",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cb0f6",
        "color-brand-content": "#6cb0f6",
        "color-brand-visited": "#6cb0f6",
    },
}


def setup(app: Sphinx) -> None:
    """SQL on these pages is PostgreSQL's, which quotes with dollars."""
    app.add_lexer("sql", PostgresLexer)
