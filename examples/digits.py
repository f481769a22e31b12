"""Digits for the examples: where they come from, and how more are made of few.

With no file, scikit-learn downloads MNIST. A file is an ``.npz`` with `images` of shape (n, 784)
and `labels`.
"""

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

SIDE = 28


def load_digits(path: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return images, shape (n, 784) from 0 to 255, and labels."""
    if path is not None:
        with np.load(path) as stored:
            return stored["images"], stored["labels"]
    from sklearn.datasets import fetch_openml

    images, labels = fetch_openml("mnist_784", return_X_y=True, as_frame=False)
    return images, labels.astype(int)


def deformed(image: np.ndarray, rng: np.random.Generator, strength: float = 1.0) -> np.ndarray:
    """Shift, rotate and bend an image a little: at strength 1 by a pixel, 6 degrees and a pixel."""
    rows, columns = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    angle = np.deg2rad(rng.normal(0, 6 * strength))
    bend = [30 * strength * gaussian_filter(rng.uniform(-1, 1, (SIDE, SIDE)), 4) for _ in range(2)]
    turned = (
        np.cos(angle) * rows - np.sin(angle) * columns,
        np.sin(angle) * rows + np.cos(angle) * columns,
    )
    center = (SIDE - 1) / 2 + rng.normal(0, strength, 2)
    where = [t + c + b for t, c, b in zip(turned, center, bend, strict=True)]
    return map_coordinates(image.reshape(SIDE, SIDE).astype(float), where, order=1).ravel()


def deformed_rows(
    images: np.ndarray, rng: np.random.Generator, strength: float = 1.0
) -> np.ndarray:
    """Deform each image; pixels from 0 to 1."""
    return np.array([deformed(image, rng, strength) for image in images]) / 255
