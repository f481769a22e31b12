"""Code in the documentation can be read: WCAG's contrast AA, in the light and the dark theme."""

import ast
from pathlib import Path

import pytest

styles = pytest.importorskip("pygments.styles")

CONF = Path(__file__).parents[2] / "docs" / "conf.py"
AA = 4.5


def luminance(colour):
    """Relative luminance of a colour such as ff0000, as WCAG 2 defines it."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast():
    assert contrast("000000", "ffffff") == pytest.approx(21.0)
    assert contrast("777777", "ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("setting", ["pygments_style", "pygments_dark_style"])
def test_colours_of_code(setting):
    values = {
        node.targets[0].id: node.value.value
        for node in ast.parse(CONF.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    style = styles.get_style_by_name(values[setting])
    plain = style.background_color.lstrip("#")
    low = {
        str(token): (look["color"], look["bgcolor"] or plain)
        for token, look in style
        if look["color"] and contrast(look["color"], look["bgcolor"] or plain) < AA
    }
    # Spaces have a colour and nothing to see.
    assert set(low) <= {"Token.Text.Whitespace"}
