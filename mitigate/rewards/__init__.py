"""The sentence reward and its aspects."""
