"""Losses: how one is computed, how those of parts make that of the whole, and cross-entropy without whole logits."""
