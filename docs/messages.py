"""Write the page of messages: python docs/messages.py."""

from pathlib import Path

from pymc_minibatch.messages import MESSAGES

GROUPS = {
    "PMB0": ("Changes of the package", "Warnings about what the next release no longer takes."),
    "PMB1": ("While a step is set up", "Warnings before the first draw."),
    "PMB2": ("While chains run", "Warnings that are raised, or logged as PyMC logs its own."),
    "PMB3": ("Errors that stop a chain", "The message of a `SamplingError` ends with the id."),
    "PMB4": ("After the fit", "Warnings of functions that read a result."),
    "PMB5": ("Files and memory", "Warnings about copies, stores and the compile cache."),
    "PMB6": (
        "Exceptions of this package",
        "The id stands on a line of its own below the message. Each class is described in the "
        "[API](api.md).",
    ),
}
"""Title of a group of messages and what they are, by the start of their ids."""


def page() -> str:
    """Return docs/messages.md."""
    lines = [
        "# Messages",
        "",
        "<!-- Written by python docs/messages.py from pymc_minibatch/messages.py. -->",
        "",
        "Warnings and errors of this package end with an id, such as `[PMB101]`, which stays the "
        "same from release to release. All warnings are `pmb.MinibatchWarning`s, so that you can "
        "filter them together, or one by its id:",
        "",
        "```python",
        "import warnings",
        "",
        'warnings.filterwarnings("ignore", message=r".*\\[PMB101\\]")',
        "```",
        "",
        "A `TypeError` or `ValueError` about an argument has no id: its message says what to "
        "write. [Troubleshooting](troubleshooting.md) starts from the symptom.",
    ]
    for start, (title, words) in GROUPS.items():
        lines += ["", f"## {title}", "", words]
        for identifier, message in MESSAGES.items():
            if identifier.startswith(start):
                lines += ["", f"### {identifier}", "", f"**{message.title}.**", ""]
                lines += [f"- Cause: {message.cause}", f"- What to do: {message.remedy}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page())
