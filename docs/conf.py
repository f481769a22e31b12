"""Sphinx configuration."""

import inspect
import logging
from importlib.metadata import version as installed_version

project = "pymc-minibatch"
author = "The pymc-minibatch developers"
copyright = author
release = installed_version("pymc-minibatch")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False

# The tables of docs/api.md link to sections of the same page, so no page has to be generated.
autosummary_generate = False
autodoc_default_options = {"members": True}
# Types are given in the docstrings. A method of PyMC that is overridden here without words of its
# own is left out.
autodoc_typehints = "none"
autodoc_inherit_docstrings = False

# PyTensor logs harmless notes about its settings while autodoc imports it.
logging.getLogger("pytensor").setLevel(logging.WARNING)

html_theme = "furo"
html_title = f"pymc-minibatch {release}"


def show_init_signature(app, what, name, obj, options, signature, returned):
    """Show the arguments of ``__init__``: PyMC's steps have a ``__new__`` that hides them."""
    if what != "class" or "__init__" not in vars(obj):
        return None
    parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare)), None


def setup(app):
    app.connect("autodoc-process-signature", show_init_signature)
