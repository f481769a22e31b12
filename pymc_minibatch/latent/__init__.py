"""Models with effects: latent variables that are nearly Gaussian given a few hyperparameters."""
