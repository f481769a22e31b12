"""Machine code: graphs and loops compiled by PyTensor and Numba, called by address, kept on disk."""
