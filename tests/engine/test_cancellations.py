"""Clients leave, many times over, at any moment of their requests: nothing stays behind."""
