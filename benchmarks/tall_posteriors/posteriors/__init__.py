"""The posteriors, one module each."""
