"""The pictures of the documents; see `__main__`."""
