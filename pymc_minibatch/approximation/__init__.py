"""What an approximate posterior is made of: draws, their check, a result."""
