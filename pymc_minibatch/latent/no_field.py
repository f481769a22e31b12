"""The error of models without a latent field."""

__all__ = ["NoFieldError"]


class NoFieldError(ValueError):
    """The variables are no latent field; the message says why."""
