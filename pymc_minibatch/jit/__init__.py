"""Machine code of graphs and loops: compiled, called by address, kept on disk."""
