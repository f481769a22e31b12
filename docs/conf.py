"""Sphinx configuration."""

import inspect
import logging
import math
import re
from importlib.metadata import version as installed_version
from pathlib import Path

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.util import logging as sphinx_logging

from pymc_minibatch.steps.stats import with_tables

HERE = Path(__file__).parent

project = "pymc-minibatch"
author = "The pymc-minibatch developers"
copyright = author
release = installed_version("pymc-minibatch")
version = release

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

# The tutorial's pages are notebooks. A page runs again only if one of its cells has changed.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_timeout = 600
nb_execution_show_tb = True
# PyMC logs what it samples, which says little in a page.
nb_output_stderr = "remove"

copybutton_exclude = ".linenos, .gp, .go"

napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = True
napoleon_type_aliases = {
    "DataFrame": "pandas.DataFrame",
    "DataTree": "xarray.DataTree",
    "ELPDData": "arviz_stats.ELPDData",
    "Reference": "pymc_minibatch.Reference",
    "TallModel": "pymc_minibatch.TallModel",
    "ndarray": "numpy.ndarray",
}

# The tables of docs/api.md link to sections of the same page, so no page has to be generated.
autosummary_generate = False
# Methods are those that docs/api.md names: others are for this package itself.
# Types are given in the docstrings. A method of PyMC that is overridden here without words of its
# own is left out.
autodoc_typehints = "none"
autodoc_inherit_docstrings = False

# Only what these pages refer to, in files of the simplest format: the build needs no network.
ELSEWHERE = {
    "arviz_plots": "https://python.arviz.org/projects/plots/en/stable/",
    "arviz_stats": "https://python.arviz.org/projects/stats/en/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "pymc": "https://www.pymc.io/projects/docs/en/stable/",
    "xarray": "https://docs.xarray.dev/en/stable/",
}
intersphinx_mapping = {
    name: (address, str(HERE / "inventories" / f"{name}.inv"))
    for name, address in ELSEWHERE.items()
}

# Harmless notes: of PyTensor about its settings, and of notebooks that they run.
logging.getLogger("pytensor").setLevel(logging.WARNING)
logging.getLogger("traitlets").setLevel(logging.WARNING)

html_theme = "furo"
# All colours have a contrast of 4.5 and more on their background, in both themes.
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"
html_title = f"pymc-minibatch {release}"
html_static_path = ["_static"]
html_logo = "_static/logo.svg"
html_favicon = "_static/favicon.svg"
html_css_files = ["custom.css"]
html_math_renderer = "mathml"


def to_mathml(latex, node, display):
    """Convert a formula to MathML, which browsers draw without a script or a network."""
    # A thin space after the name of a function, as TeX has it.
    converted = re.sub(
        r"(?<!<msub>)(?<!<msup>)<mo>(log|exp|sin|cos)</mo>(?=<mi>|<ms|<mover>|<mn>)",
        r'<mi>\1</mi><mspace width="0.1667em" />',
        convert(latex, display=display),
    )
    if left_over := re.findall(r"\\[A-Za-z]+", converted):
        logger = sphinx_logging.getLogger(__name__)
        logger.warning("no MathML for %s", ", ".join(left_over), location=node)
    return converted


def visit_inline_math(writer, node):
    """Write a formula within a line."""
    writer.body.append(to_mathml(node.astext(), node, "inline"))
    raise SkipNode


def visit_display_math(writer, node):
    """Write a formula on lines of its own, which scrolls by itself if it is too wide."""
    writer.body.append('<div class="math">')
    writer.body.append(to_mathml(node.astext(), node, "block"))
    writer.body.append("</div>")
    raise SkipNode


class Written:
    """A default as a reader would write it."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def readable(parameter):
    """Write large powers of two, such as numbers of bytes, as powers."""
    default, bare = parameter.default, inspect.Parameter.empty
    if isinstance(default, float | int) and 2**20 <= default < float("inf"):
        power = math.log2(default)
        if power == int(power):
            default = Written(f"2**{int(power)}")
    return parameter.replace(annotation=bare, default=default)


def show_init_signature(app, what, name, obj, options, signature, returned):
    """Show the arguments of ``__init__``: PyMC's steps have a ``__new__`` that hides them."""
    if what != "class" or obj.__init__ is object.__init__:
        return None
    parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
    return str(inspect.Signature([readable(p) for p in parameters])), None


def fill_tables_of_stats(app, name, source):
    """Write the tables of the sample stats into their page."""
    if name == "stats":
        source[0] = with_tables(source[0])


def setup(app):
    app.connect("source-read", fill_tables_of_stats)
    app.connect("autodoc-process-signature", show_init_signature)
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(visit_inline_math, None),
        block_renderers=(visit_display_math, None),
    )
